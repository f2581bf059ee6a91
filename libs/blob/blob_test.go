package blob_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]blob.Location{
		"s3://bucket":                        {Scheme: "s3", Bucket: "bucket"},
		"s3://bucket/a/b/":                   {Scheme: "s3", Bucket: "bucket", Prefix: "a/b"},
		"s3://bucket//a/../b":                {Scheme: "s3", Bucket: "bucket", Prefix: "b"},
		"s3://127.0.0.1:9000/bucket/a":       {Scheme: "s3", Endpoint: "http://127.0.0.1:9000", Bucket: "bucket", Prefix: "a"},
		"s3://[::1]:9000/bucket":             {Scheme: "s3", Endpoint: "http://[::1]:9000", Bucket: "bucket"},
		"s3://https://host:443/bucket/a b":   {Scheme: "s3", Endpoint: "https://host:443", Bucket: "bucket", Prefix: "a b"},
		"s3://http://host:80/bucket":         {Scheme: "s3", Endpoint: "http://host:80", Bucket: "bucket"},
		"s3://https://s3.example.com/bucket": {Scheme: "s3", Endpoint: "https://s3.example.com", Bucket: "bucket"},
		"gs://bucket/a":                      {Scheme: "gs", Bucket: "bucket", Prefix: "a"},
		"as://account/container/a/b":         {Scheme: "as", Account: "account", Bucket: "container", Prefix: "a/b"},
		"as://a.blob.core.windows.net/c":     {Scheme: "as", Account: "a.blob.core.windows.net", Bucket: "c"},
		"file:///models/x/":                  {Scheme: "file", Bucket: "/models/x"},
	} {
		got, err := blob.Parse(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
		if again, err := blob.Parse(got.String()); err != nil || again != got {
			t.Errorf("%s is written as %s, which is %v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"s3://", "s3://host:9000", "s3://https://host", "gs://", "as://account", "as:///c", "as://a/b c", "gs://a:b", "file://x", "ftp://a/b", "bucket", ""} {
		if _, err := blob.Parse(text); errs.Of(err) != errs.ConfigInvalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func at(t *testing.T, url string) *blob.Dir {
	t.Helper()
	return within(t, time.Minute, url) // a slow machine is no silent store
}

// within is a store's directory that is given up after a silence of stall.
func within(t *testing.T, stall time.Duration, url string) *blob.Dir {
	t.Helper()
	dir, err := blob.New(blob.Options{Attempts: 1, Stall: stall}).At(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestListingShowsWhatIsBelow(t *testing.T) {
	store := objectstore.Start(t)
	for _, key := range []string{"repo/m/1/model.onnx", "repo/m/config.pbtxt", "repo/n/", "repo//odd", "repo/../up", "repository/x"} {
		store.Put(key, key)
	}
	var names []string
	list, err := at(t, store.URL()+"/repo").List(t.Context(), "")
	for _, o := range list {
		names = append(names, fmt.Sprint(o.Name, " ", o.Size, " ", o.ETag != ""))
	}
	if diff := cmp.Diff([]string{"m/1/model.onnx 19 true", "m/config.pbtxt 19 true", "n/ 7 true"}, names); err != nil || diff != "" {
		t.Errorf("List: %v\n%s", err, diff)
	}
	if list, err := at(t, store.URL()+"/repo").List(t.Context(), "m/1"); err != nil || len(list) != 1 || list[0].Name != "m/1/model.onnx" {
		t.Errorf("List of a part: %v, %v", list, err)
	}
	for i := range 2500 {
		store.Put(fmt.Sprintf("many/%04d", i), "x")
	}
	if list, err := at(t, store.URL()+"/many").List(t.Context(), ""); err != nil || len(list) != 2500 {
		t.Errorf("List of many: %d, %v", len(list), err)
	}
}

func TestListingThatStopsComingIsGivenUp(t *testing.T) {
	store := objectstore.Start(t)
	store.Fail(func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = w.Write([]byte("<ListBucketResult>"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
	if _, err := within(t, 50*time.Millisecond, store.URL()).List(t.Context(), ""); errs.Of(err) != errs.StoreUnreachable {
		t.Errorf("List = %v", err)
	}
}

func TestRangesOfTheListedContentAreRead(t *testing.T) {
	store := objectstore.Start(t)
	store.Put("a", "0123456789")
	dir := at(t, store.URL())
	list, err := dir.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := read(t.Context(), dir, list[0], 3, 4); got != "3456" || err != nil {
		t.Errorf("bytes 3 to 6: %q, %v", got, err)
	}
	store.Put("a", "abcdefghij")
	if _, err := read(t.Context(), dir, list[0], 3, 4); errs.Of(err) != errs.FilesChanged {
		t.Errorf("of another content: %v", err)
	}
	// A server that ignores the condition is found out.
	store.Fail(func(_ http.ResponseWriter, r *http.Request) bool { r.Header.Del("If-Match"); return false })
	if _, err := read(t.Context(), dir, list[0], 3, 4); errs.Of(err) != errs.FilesChanged {
		t.Errorf("without conditions: %v", err)
	}
}

// A server that shows files of a disk has no ETags of those that it did not put
// there.
func TestObjectsWithoutETagsAreKnownByTimeAndSize(t *testing.T) {
	store := objectstore.Start(t)
	store.PutUntagged("a", "0123")
	dir := at(t, store.URL())
	list, err := dir.List(t.Context(), "")
	if err != nil || list[0].ETag == "" {
		t.Fatalf("List = %v, %v", list, err)
	}
	if got, err := read(t.Context(), dir, list[0], 0, 4); got != "0123" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	store.PutUntagged("a", "01234")
	if again, err := dir.List(t.Context(), ""); err != nil || again[0].ETag == list[0].ETag {
		t.Errorf("List after a change = %v, %v", again, err)
	}
}

func read(ctx context.Context, dir *blob.Dir, o blob.Object, offset, length int64) (string, error) {
	body, err := dir.Open(ctx, o, offset, length)
	if err != nil {
		return "", err
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	return string(data), err
}

func TestFailuresHaveReasonsAndHoldNoSecret(t *testing.T) {
	refuse := func(status int, code string) objectstore.Fault {
		return func(w http.ResponseWriter, _ *http.Request) bool { objectstore.Refuse(w, status, code); return true }
	}
	for name, tt := range map[string]struct {
		fault objectstore.Fault
		want  errs.Reason
		says  string
	}{
		"denied":      {refuse(403, "AccessDenied"), errs.StoreDenied, "s3:GetObject"},
		"bad key":     {refuse(403, "InvalidAccessKeyId"), errs.StoreDenied, "check the credentials"},
		"no bucket":   {refuse(404, "NoSuchBucket"), errs.StoreNotFound, "create the bucket models"},
		"no object":   {refuse(404, "NoSuchKey"), errs.StoreNotFound, "removed"},
		"failure":     {refuse(500, "InternalError"), errs.StoreUnreachable, "InternalError"},
		"slow down":   {refuse(503, "SlowDown"), errs.StoreThrottled, "slow down"},
		"too many":    {refuse(429, ""), errs.StoreThrottled, "slow down"},
		"redirection": {refuse(301, "PermanentRedirect"), errs.StoreNotFound, "AWS_DEFAULT_REGION"},
		"reset":       {func(w http.ResponseWriter, _ *http.Request) bool { hijack(w); return true }, errs.StoreUnreachable, "check the endpoint"},
		"silence":     {func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, errs.StoreUnreachable, "no"},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write([]byte("0123"))
			return true
		}, errs.StoreTruncated, "before all bytes came"},
	} {
		t.Run(name, func(t *testing.T) {
			store := objectstore.Start(t)
			t.Setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
			store.Put("a", "0123456789")
			dir := at(t, store.URL())
			list, err := dir.List(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			store.Fail(tt.fault)
			if name == "silence" {
				dir = within(t, 50*time.Millisecond, store.URL())
			}
			_, err = read(t.Context(), dir, list[0], 0, 10)
			if errs.Of(err) != tt.want || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "hush-hush") {
				t.Errorf("error %v, want %s with %q", err, tt.want, tt.says)
			}
		})
	}
}

func hijack(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// TestAServerWithoutTLSIsTold asks one that speaks plain text.
func TestAServerWithoutTLSIsTold(t *testing.T) {
	store := objectstore.Start(t)
	plain := strings.Replace(store.URL(), "s3://", "s3://https://", 1)
	dir, err := blob.New(blob.Options{Attempts: 1}).At(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dir.List(t.Context(), ""); errs.Of(err) != errs.StoreUnreachable || !strings.Contains(err.Error(), "HTTP response to HTTPS client") {
		t.Errorf("List = %v", err)
	}
}

func TestAnEndedContextIsItsOwnCause(t *testing.T) {
	store := objectstore.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	store.Fail(func(_ http.ResponseWriter, r *http.Request) bool { cancel(); <-r.Context().Done(); return true })
	if _, err := at(t, store.URL()).List(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %v", err)
	}
}

func TestDirectoriesStandInForStores(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a"), []byte("0123"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := at(t, "file://"+root)
	list, err := dir.List(t.Context(), "")
	if err != nil || len(list) != 1 || list[0].ETag == "" {
		t.Fatalf("List = %v, %v", list, err)
	}
	if got, err := read(t.Context(), dir, list[0], 1, 2); got != "12" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if _, known := dir.SHA256(t.Context(), list[0]); known {
		t.Error("a directory knows digests")
	}
}
