package blob_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
)

// asked lists a bucket and returns the signature that came with the request.
func asked(t *testing.T, store *objectstore.Server, path string) string {
	t.Helper()
	var mu sync.Mutex
	var header string
	store.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		header = r.Header.Get("Authorization")
		return false
	})
	if _, err := at(t, store.URL()+path).List(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	return header
}

var scope = regexp.MustCompile(`Credential=([^/]+)/\d+/([^/]+)/`)

func TestTheLongestPrefixChoosesTheCredentials(t *testing.T) {
	store := objectstore.Start(t)
	file := filepath.Join(t.TempDir(), "credentials.json")
	text := `{"s3": {
		"": {"key_id": "all", "secret_key": "s", "region": "eu-west-1"},
		"URL": {"key_id": "bucket", "secret_key": "s", "region": "eu-west-2"},
		"URL/deep": {"key_id": "deep", "secret_key": "s", "region": "eu-west-3"}
	}}`
	t.Setenv("TRITON_CLOUD_CREDENTIAL_PATH", file)
	for _, tt := range []struct{ text, path, want string }{
		{strings.ReplaceAll(text, "URL", store.URL()), "", "bucket eu-west-2"},
		{strings.ReplaceAll(text, "URL", store.URL()), "/deep/er", "deep eu-west-3"},
		{strings.ReplaceAll(text, "URL", strings.Replace(store.URL(), "s3://", "s3://http://", 1)), "/x", "bucket eu-west-2"},
		{strings.ReplaceAll(text, "URL", "s3://elsewhere"), "", "all eu-west-1"},
		{`{"s3": {"s3://elsewhere": {"key_id": "x", "secret_key": "s"}}}`, "", "test us-east-1"},
		{`{}`, "", "test us-east-1"},
	} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		header := asked(t, store, tt.path)
		found := scope.FindStringSubmatch(header)
		if found == nil || found[1]+" "+found[2] != tt.want {
			t.Errorf("%s: signed as %q, want %s", tt.path, header, tt.want)
		}
	}
}

func TestWithoutCredentialsRequestsAreAnonymous(t *testing.T) {
	store := objectstore.Start(t)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	if header := asked(t, store, ""); header != "" {
		t.Errorf("signed as %q", header)
	}
	store.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
		objectstore.Refuse(w, http.StatusForbidden, "AccessDenied")
		return true
	})
	if _, err := at(t, store.URL()).List(t.Context(), ""); errs.Of(err) != errs.StoreDenied || !strings.Contains(err.Error(), "no credentials were found") {
		t.Errorf("List = %v", err)
	}
}

func TestAFileOfCredentialsThatCannotBeReadSaysNothingOfIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "credentials.json")
	t.Setenv("TRITON_CLOUD_CREDENTIAL_PATH", file)
	for _, text := range []string{"", `{"s3": {"": {"secret_key": 5678}}}`, `{"s3": "hush"`} {
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := blob.New(blob.Options{}).At(t.Context(), "s3://bucket")
		if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "5678") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Stores are opened with the credentials that there are, and without a request.
// The end-to-end tests read from real servers.
func TestStoresOfOtherProvidersAreOpened(t *testing.T) {
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	for _, url := range []string{"as://account/container/models", "as://other/container"} {
		if dir, err := blob.New(blob.Options{}).At(t.Context(), url); err != nil || dir.URL() != url {
			t.Errorf("%s: %v", url, err)
		}
	}
	file := filepath.Join(t.TempDir(), "google.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	if _, err := blob.New(blob.Options{}).At(t.Context(), "gs://bucket"); errs.Of(err) != errs.StoreDenied || !strings.Contains(err.Error(), "GOOGLE_APPLICATION_CREDENTIALS") {
		t.Errorf("a file that is not there: %v", err)
	}
	user := `{"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}`
	if err := os.WriteFile(file, []byte(user), 0o600); err != nil {
		t.Fatal(err)
	}
	if dir, err := blob.New(blob.Options{}).At(t.Context(), "gs://bucket/models"); err != nil || dir.URL() != "gs://bucket/models" {
		t.Errorf("gs://bucket/models: %v", err)
	}
}
