package blob_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
)

// azure serves one object, a/weights with the bytes 0123456789, as far as the
// protocol of Azure Blob Storage is needed for that.
func azure(t *testing.T) (url string, changed func()) {
	t.Helper()
	var present atomic.Value
	present.Store(`"0x1"`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tag := present.Load().(string)
		if !strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey account:") {
			w.Header().Set("x-ms-error-code", "AuthenticationFailed")
			w.WriteHeader(http.StatusForbidden)
			return
		}
		switch {
		case r.URL.Path == "/account/models" && r.URL.Query().Get("comp") == "list":
			w.Header().Set("Content-Type", "application/xml")
			fmt.Fprintf(w, `<EnumerationResults><Blobs><Blob><Name>a/weights</Name><Properties><Last-Modified>Sat, 01 Nov 2025 10:00:00 GMT</Last-Modified><Content-Length>10</Content-Length><Etag>%s</Etag></Properties></Blob></Blobs></EnumerationResults>`, tag)
		case r.URL.Path != "/account/models/a/weights":
			w.Header().Set("x-ms-error-code", "ContainerNotFound")
			w.WriteHeader(http.StatusNotFound)
		case r.Header.Get("If-Match") != tag:
			w.Header().Set("x-ms-error-code", "ConditionNotMet")
			w.WriteHeader(http.StatusPreconditionFailed)
		default:
			w.Header().Set("ETag", tag)
			w.Header().Set("Last-Modified", "Sat, 01 Nov 2025 10:00:00 GMT")
			w.Header().Set("Content-Length", "4")
			w.Header().Set("Content-Range", "bytes 3-6/10")
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, "3456")
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("AZURE_STORAGE_SERVICE_ENDPOINT", server.URL+"/account/")
	t.Setenv("AZURE_STORAGE_ACCOUNT", "account")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	return "as://account/models", func() { present.Store(`"0x2"`) }
}

// gcs serves one object, a/weights, as far as the protocol of Google Cloud Storage
// is needed for that.
func gcs(t *testing.T) (url string, changed func()) {
	t.Helper()
	var present atomic.Value
	present.Store("17")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		generation := present.Load().(string)
		switch {
		case r.URL.Path == "/storage/v1/b/models/o":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"items": [{"name": "a/weights", "size": "10", "generation": %q, "etag": "no generation"}]}`, generation)
		case !strings.HasSuffix(r.URL.Path, "/models/a/weights") && !strings.HasSuffix(r.URL.Path, "/b/models/o/a/weights"):
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error": {"code": 404, "message": "no such bucket", "errors": [{"reason": "notFound"}]}}`)
		case r.URL.Query().Get("generation") != generation:
			w.WriteHeader(http.StatusNotFound)
		default:
			w.Header().Set("X-Goog-Generation", generation)
			w.Header().Set("Content-Range", "bytes 3-6/10")
			w.Header().Set("Content-Length", "4")
			w.WriteHeader(http.StatusPartialContent)
			fmt.Fprint(w, "3456")
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(server.URL, "http://"))
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(server.URL, "http://")) // no machine's own
	t.Setenv("HOME", t.TempDir())
	return "gs://models", func() { present.Store("18") }
}

// The generation of a Google object is asked for, so that another one is not
// found rather than changed.
func TestProvidersReadWhatWasListed(t *testing.T) {
	for name, tt := range map[string]struct {
		start func(*testing.T) (string, func())
		tag   string
		then  errs.Reason
	}{
		"Azure":  {azure, `"0x1"`, errs.FilesChanged},
		"Google": {gcs, "17", errs.StoreNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			url, changed := tt.start(t)
			dir := at(t, url)
			list, err := dir.List(t.Context(), "a")
			if err != nil || len(list) != 1 || list[0].Name != "a/weights" || list[0].Size != 10 || list[0].ETag != tt.tag {
				t.Fatalf("List = %+v, %v", list, err)
			}
			if got, err := read(t.Context(), dir, list[0], 3, 4); got != "3456" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
			if _, known := dir.SHA256(t.Context(), list[0]); known {
				t.Error("the store knows a digest")
			}
			changed()
			if _, err := read(t.Context(), dir, list[0], 3, 4); errs.Of(err) != tt.then {
				t.Errorf("after a change: %v", err)
			}
			absent := at(t, url+"-absent")
			if _, err := absent.List(t.Context(), ""); errs.Of(err) != errs.StoreNotFound {
				t.Errorf("of a bucket that is not there: %v", err)
			}
		})
	}
}

// A request that Google's store cannot serve now is tried again, a refusal is not.
func TestGoogleRequestsAreTriedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		status, failures int // each request fails with status as often
		then             errs.Reason
		requests         int32
	}{
		"once":        {http.StatusServiceUnavailable, 1, "", 2},
		"throttled":   {http.StatusTooManyRequests, 9, errs.StoreThrottled, 2},
		"always down": {http.StatusBadGateway, 9, errs.StoreUnreachable, 2},
		"refused":     {http.StatusForbidden, 9, errs.StoreDenied, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if int(requests.Add(1)) <= tt.failures {
					w.WriteHeader(tt.status)
					fmt.Fprint(w, "no JSON")
					return
				}
				fmt.Fprint(w, `{}`)
			}))
			defer server.Close()
			t.Setenv("STORAGE_EMULATOR_HOST", server.URL+"/")
			dir, err := blob.New(blob.Options{Attempts: 2}).At(t.Context(), "gs://bucket")
			if err != nil {
				t.Fatal(err)
			}
			_, err = dir.List(t.Context(), "")
			if (err == nil) != (tt.then == "") || err != nil && errs.Of(err) != tt.then || requests.Load() != tt.requests {
				t.Errorf("List = %v after %d requests", err, requests.Load())
			}
		})
	}
}

// The pages of a listing follow each other, and objects are read as they are
// stored: the names are escaped once, gzip is not unpacked, and a server that
// knows no ranges is found out.
func TestGoogleObjectsAreReadAsTheyAreStored(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/storage/v1/b/bucket/o" && r.URL.Query().Get("pageToken") == "":
			fmt.Fprint(w, `{"items": [{"name": "a b/ä%2F?", "size": "4", "generation": "1"}], "nextPageToken": "next"}`)
		case r.URL.Path == "/storage/v1/b/bucket/o":
			fmt.Fprintf(w, `{"items": [{"name": %q, "size": "4", "generation": "1"}]}`, r.URL.Query().Get("pageToken"))
		case r.URL.EscapedPath() == "/storage/v1/b/bucket/o/a%20b%2F%C3%A4%252F%3F" && r.Header.Get("Accept-Encoding") == "gzip":
			w.Header().Set("Content-Encoding", "gzip")
			fmt.Fprint(w, "0123")
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	t.Setenv("STORAGE_EMULATOR_HOST", server.URL)
	dir := at(t, "gs://bucket")
	list, err := dir.List(t.Context(), "")
	if err != nil || len(list) != 2 || list[1].Name != "next" {
		t.Fatalf("List = %v, %v", list, err)
	}
	if got, err := read(t.Context(), dir, list[0], 0, 4); got != "0123" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if got, err := read(t.Context(), dir, list[0], 1, 2); err == nil {
		t.Errorf("a range of a store without ranges is %q", got)
	}
}

// serviceAccount writes the key of a service account whose tokens come from a
// server, and a file of credentials that names it.
func serviceAccount(t *testing.T, tokens string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	account, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "nereid@example.com", "token_uri": tokens,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file, credentials := filepath.Join(dir, "account.json"), filepath.Join(dir, "credentials.json")
	for name, text := range map[string]string{file: string(account), credentials: fmt.Sprintf(`{"gs": {"gs://bucket": %q}}`, file)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TRITON_CLOUD_CREDENTIAL_PATH", credentials)
}

func TestGoogleCredentials(t *testing.T) {
	var refused atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/token" && refused.Load():
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error": "invalid_grant", "error_description": "hush-hush"}`)
		case r.URL.Path == "/token":
			fmt.Fprint(w, `{"access_token": "granted", "token_type": "Bearer", "expires_in": 3600}`)
		case r.Header.Get("Authorization") != "Bearer granted":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			fmt.Fprint(w, `{"items": [{"name": "a", "size": "1", "generation": "1"}]}`)
		}
	}))
	defer server.Close()
	t.Setenv("STORAGE_EMULATOR_HOST", server.URL)
	serviceAccount(t, server.URL+"/token")
	if list, err := at(t, "gs://bucket").List(t.Context(), ""); err != nil || len(list) != 1 {
		t.Errorf("List = %v, %v", list, err)
	}
	if _, err := at(t, "gs://another").List(t.Context(), ""); errs.Of(err) != errs.StoreDenied || !strings.Contains(err.Error(), "no credentials were found") {
		t.Errorf("without credentials: %v", err)
	}
	refused.Store(true)
	_, err := at(t, "gs://bucket").List(t.Context(), "")
	if errs.Of(err) != errs.StoreDenied || !strings.Contains(err.Error(), "no token for the credentials") || strings.Contains(err.Error(), "hush-hush") {
		t.Errorf("of an account that gets no token: %v", err)
	}
}

func TestAzureCredentials(t *testing.T) {
	url, _ := azure(t)
	file := filepath.Join(t.TempDir(), "credentials.json")
	for _, tt := range []struct {
		name, file, account, key, says string
	}{
		{"of the environment", "", "account", "a2V5", ""},
		{"of the environment, of another account", "", "other", "a2V5", "no credentials were found"},
		{"none", "", "", "", "no credentials were found"},
		{"of the file", `{"as": {"as://account": {"account_str": "account", "account_key": "a2V5"}}}`, "", "", ""},
		{"of the file, of another account", `{"as": {"": {"account_str": "other", "account_key": "a2V5"}}}`, "", "", "check the credentials; they need the role Storage Blob Data Reader"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("AZURE_STORAGE_ACCOUNT", tt.account)
			t.Setenv("AZURE_STORAGE_KEY", tt.key)
			if tt.file != "" {
				if err := os.WriteFile(file, []byte(tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
				t.Setenv("TRITON_CLOUD_CREDENTIAL_PATH", file)
			}
			_, err := at(t, url).List(t.Context(), "")
			if tt.says == "" && err != nil || tt.says != "" && (errs.Of(err) != errs.StoreDenied || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("List = %v", err)
			}
		})
	}
}

// S3 keeps digests of objects that were put with one.
func TestDigestsThatTheStoreKeeps(t *testing.T) {
	store := objectstore.Start(t)
	store.Put("a", "0123")
	dir := at(t, store.URL())
	list, err := dir.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("0123"))
	whole := base64.StdEncoding.EncodeToString(sum[:])
	for name, tt := range map[string]struct {
		digest, kind, tag string
		want              bool
	}{
		"of the whole object": {whole, "FULL_OBJECT", list[0].ETag, true},
		"of its parts":        {whole, "COMPOSITE", list[0].ETag, false},
		"of another content":  {whole, "FULL_OBJECT", `"another"`, false},
		"too short":           {"AAAA", "FULL_OBJECT", list[0].ETag, false},
		"none":                {"", "", list[0].ETag, false},
	} {
		store.Fail(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodHead {
				return false
			}
			w.Header().Set("ETag", tt.tag)
			w.Header().Set("X-Amz-Checksum-Sha256", tt.digest)
			w.Header().Set("X-Amz-Checksum-Type", tt.kind)
			return true
		})
		if got, known := dir.SHA256(t.Context(), list[0]); known != tt.want || known && got != sum {
			t.Errorf("%s: %x, %t", name, got, known)
		}
	}
}

func TestRemote(t *testing.T) {
	for text, want := range map[string]bool{
		"s3://bucket": true, "gs://bucket": true, "as://account/c": true, "ftp://host": true, "file:///models": false, "/models": false, "models": false, "": false,
	} {
		if blob.Remote(text) != want {
			t.Errorf("Remote(%q) = %t", text, !want)
		}
	}
}
