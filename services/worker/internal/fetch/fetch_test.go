package fetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
	"github.com/nereid-serving/nereid/services/worker/internal/fetch"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// bench is a store with models, and a directory to fetch them into.
type bench struct {
	*testing.T
	store *objectstore.Server
	dir   string
	stall time.Duration // after which the store is given up
}

func newBench(t *testing.T) *bench {
	return &bench{t, objectstore.Start(t), filepath.Join(t.TempDir(), "cache"), time.Minute} // a slow machine is no silent store
}

// fetcher is that of another worker on each call.
func (b *bench) fetcher(edit ...func(*fetch.Config)) *fetch.Fetcher {
	b.Helper()
	c := fetch.Config{Dir: b.dir, Concurrency: 4}
	for _, e := range edit {
		e(&c)
	}
	f, err := fetch.New(c, fetch.Stores{Stores: blob.New(blob.Options{Attempts: 1, Stall: b.stall})}, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

func patient(c *fetch.Config) { c.StallTimeout = time.Minute }

// put writes a model into the store and names its content.
func (b *bench) put(model string, files map[string]string) source.Content {
	b.Helper()
	local := filepath.Join(b.TempDir(), model)
	for name, data := range files {
		b.store.Put("repo/"+model+"/"+name, data)
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(local, name)), 0o700), os.WriteFile(filepath.Join(local, name), []byte(data), 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	tree, err := modelfiles.List(b.Context(), modelfiles.Local{}, local, filepath.Join(local, "1"))
	if err != nil {
		b.Fatal(err)
	}
	digest, err := modelfiles.NewDigester(modelfiles.Local{}).Digest(b.Context(), tree)
	if err != nil {
		b.Fatal(err)
	}
	url := b.store.URL() + "/repo/" + model
	return source.Content{ModelURL: url, URL: url + "/1", Digest: digest}
}

// weights are bytes of three ranges.
func weights(seed int64) string {
	data := make([]byte, 17<<20)
	_, _ = rand.New(rand.NewSource(seed)).Read(data)
	return string(data)
}

// holds checks that the files are there, and closes them.
func (b *bench) holds(files source.Files, want map[string]string) {
	b.Helper()
	for name, data := range want {
		got, err := os.ReadFile(filepath.Join(files.ModelDir(), name))
		if err != nil || !bytes.Equal(got, []byte(data)) {
			b.Errorf("%s has %d bytes, want %d: %v", name, len(got), len(data), err)
		}
	}
	if err := errors.Join(files.Verify(b.Context()), files.Close()); err != nil {
		b.Error(err)
	}
}

// whole reports which contents are in the directory.
func (b *bench) whole() int {
	entries, err := os.ReadDir(filepath.Join(b.dir, "contents"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	return len(entries)
}

func TestFilesAreFetchedOnce(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": weights(1), "1/deep/x": "x", "1/empty": "", "warmup/sample": "w", "initial_state/s": "s", "own.tar.gz": "packed"}
	c := b.put("m", files)
	b.store.Put("repo/m/config.pbtxt", "not of the content")
	b.store.Put("repo/m/2/model.onnx", "not of the version")
	got, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Dir() != filepath.Join(got.ModelDir(), "1") {
		t.Errorf("the version is in %s, the model in %s", got.Dir(), got.ModelDir())
	}
	b.holds(got, files)
	b.store.Requests()
	again, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(again, files)
	if asked := b.store.Requests(); len(asked) > 0 {
		t.Errorf("files that are there are asked for: %v", asked)
	}
}

// What a store may do while files come, and what becomes of the fetch.
func TestFaultsOfTheStorePass(t *testing.T) {
	const times = 3
	refuse := func(status int, code string) objectstore.Fault {
		return func(w http.ResponseWriter, _ *http.Request) bool { objectstore.Refuse(w, status, code); return true }
	}
	for name, fault := range map[string]objectstore.Fault{
		"denied":     refuse(403, "AccessDenied"),
		"no bucket":  refuse(404, "NoSuchBucket"),
		"failure":    refuse(500, "InternalError"),
		"slow down":  refuse(503, "SlowDown"),
		"silence":    func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true },
		"truncation": truncate,
		"reset": func(w http.ResponseWriter, _ *http.Request) bool {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if name == "silence" {
				b.stall = 300 * time.Millisecond
			}
			files := map[string]string{"1/model.onnx": weights(2)}
			c := b.put("m", files)
			var left atomic.Int32
			left.Store(times)
			b.store.Fail(func(w http.ResponseWriter, r *http.Request) bool { return left.Add(-1) >= 0 && fault(w, r) })
			got, err := b.fetcher(patient).Fetch(t.Context(), c, nil)
			if err != nil {
				t.Fatal(err)
			}
			b.holds(got, files)
		})
	}
}

// truncate sends the first half of a range.
func truncate(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Range") == "" {
		return false
	}
	var from, to int
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		return false
	}
	w.Header().Set("Content-Length", fmt.Sprint(to-from+1))
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, 17<<20))
	w.Header().Set("ETag", r.Header.Get("If-Match"))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write([]byte(weights(2)[from : from+(to-from)/2]))
	return true
}

func TestAFetchThatDoesNotGetOnFailsAndSaysWhy(t *testing.T) {
	b := newBench(t)
	c := b.put("m", map[string]string{"1/model.onnx": "m"})
	b.store.Fail(func(w http.ResponseWriter, _ *http.Request) bool {
		objectstore.Refuse(w, http.StatusForbidden, "AccessDenied")
		return true
	})
	if _, err := b.fetcher().Fetch(t.Context(), c, nil); errs.Of(err) != errs.StoreDenied {
		t.Errorf("Fetch = %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var told []source.Progress
	_, err := b.fetcher(patient).Fetch(ctx, c, func(p source.Progress) {
		told = append(told, p)
		cancel()
	})
	if !errors.Is(err, context.Canceled) || len(told) == 0 || told[0].Reason != errs.StoreDenied || !strings.Contains(told[0].Text, "s3:GetObject") {
		t.Errorf("Fetch = %v, told %v", err, told)
	}
	b.store.Fail(nil)
	got, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(got, map[string]string{"1/model.onnx": "m"})
}

func TestWhatCameBeforeAnEndIsNotFetchedAgain(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": weights(3)}
	c := b.put("m", files)
	ctx, cancel := context.WithCancel(t.Context())
	var served atomic.Int32
	b.store.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") == "" || served.Add(1) < 3 {
			return false
		}
		cancel() // in the middle of the third range
		<-r.Context().Done()
		return true
	})
	one := func(c *fetch.Config) { c.Concurrency = 1 }
	if _, err := b.fetcher(one).Fetch(ctx, c, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("Fetch = %v", err)
	}
	if b.whole() != 0 {
		t.Error("half a content is in its place")
	}
	b.store.Fail(nil)
	b.store.Requests()
	got, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(got, files)
	ranges := slices.DeleteFunc(b.store.Requests(), func(r string) bool { return !strings.HasPrefix(r, "GET") })
	if len(ranges) != 1 {
		t.Errorf("fetched again: %v", ranges)
	}
}

// A crash of the machine may leave a journal that says more than is true.
func TestWhatACrashDamagedIsFetchedAgain(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": weights(4)}
	c := b.put("m", files)
	ctx, cancel := context.WithCancel(t.Context())
	var served atomic.Int32
	b.store.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") == "" || served.Add(1) < 3 {
			return false
		}
		cancel()
		<-r.Context().Done()
		return true
	})
	if _, err := b.fetcher(func(c *fetch.Config) { c.Concurrency = 1 }).Fetch(ctx, c, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("Fetch = %v", err)
	}
	found, err := filepath.Glob(filepath.Join(b.dir, "partial", "*", "files", "1", "model.onnx"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	file, err := os.OpenFile(found[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	b.store.Fail(nil)
	got, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(got, files)
}

func TestOtherFilesAreNotTaken(t *testing.T) {
	b := newBench(t)
	c := b.put("m", map[string]string{"1/model.onnx": "as the registry read it"})
	good, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.store.Put("repo/m/1/model.onnx", "replaced")
	fresh := &bench{t, b.store, filepath.Join(t.TempDir(), "other"), b.stall}
	if _, err := fresh.fetcher(patient).Fetch(t.Context(), c, nil); errs.Of(err) != errs.FilesChanged || fresh.whole() != 0 {
		t.Errorf("Fetch = %v", err)
	}
	b.store.Delete("repo/m/1/model.onnx")
	if _, err := fresh.fetcher(patient).Fetch(t.Context(), c, nil); errs.Of(err) != errs.FilesChanged {
		t.Errorf("Fetch of nothing = %v", err)
	}
	// What was good is there still, for a worker that starts after a failed swap.
	again, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(again, map[string]string{"1/model.onnx": "as the registry read it"})
	b.holds(good, map[string]string{"1/model.onnx": "as the registry read it"})
}

// An object that is replaced while its ranges come is never mixed.
func TestAnObjectThatChangesUnderway(t *testing.T) {
	b := newBench(t)
	c, other := b.put("m", map[string]string{"1/model.onnx": weights(5)}), weights(6)
	var served atomic.Int32
	b.store.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") != "" && served.Add(1) == 2 {
			b.store.Put("repo/m/1/model.onnx", other)
		}
		return false
	})
	inTurn := func(c *fetch.Config) { c.Concurrency = 1 }
	if _, err := b.fetcher(patient, inTurn).Fetch(t.Context(), c, nil); errs.Of(err) != errs.FilesChanged || b.whole() != 0 {
		t.Errorf("Fetch = %v, %d contents", err, b.whole())
	}
}

func TestDamagedFilesAreFetchedAgain(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": "weights"}
	c := b.put("m", files)
	got, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(got.Dir(), "model.onnx")
	b.holds(got, files)
	if err := os.WriteFile(name, []byte("WEIGHTS"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err = b.fetcher().Fetch(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	b.holds(got, files)
}

func TestWorkersOfAHostFetchAContentOnce(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": weights(7)}
	c := b.put("m", files)
	var all sync.WaitGroup
	for range 4 {
		f := b.fetcher()
		all.Go(func() {
			got, err := f.Fetch(t.Context(), c, nil)
			if err != nil {
				t.Error(err)
				return
			}
			b.holds(got, files)
		})
	}
	all.Wait()
	if n := len(slices.DeleteFunc(b.store.Requests(), func(r string) bool { return !strings.HasPrefix(r, "GET") })); n != 3 {
		t.Errorf("%d ranges were fetched, want 3", n)
	}
}

func TestTheLongestUnusedMakesRoom(t *testing.T) {
	b := newBench(t)
	data := func(c string) map[string]string { return map[string]string{"1/model.onnx": strings.Repeat(c, 1000)} }
	bounded := func(c *fetch.Config) { c.Bytes = 2500 }
	contents := make(map[string]source.Content)
	for _, name := range []string{"a", "b", "c", "d"} {
		contents[name] = b.put(name, data(name))
	}
	get := func(name string) source.Files {
		t.Helper()
		got, err := b.fetcher(bounded).Fetch(t.Context(), contents[name], nil)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	a := get("a")
	b.holds(get("b"), data("b"))
	b.holds(get("c"), data("c")) // for which b goes: a is in use
	if b.whole() != 2 {
		t.Errorf("%d contents, want 2", b.whole())
	}
	c := get("c")
	if asked := b.store.Requests(); slices.ContainsFunc(asked[len(asked)-1:], func(r string) bool { return strings.Contains(r, "/b/") }) {
		t.Errorf("asked for %v", asked)
	}
	if _, err := b.fetcher(bounded).Fetch(t.Context(), contents["d"], nil); errs.Of(err) != errs.CacheFull || !strings.Contains(err.Error(), "--cache-bytes") {
		t.Errorf("with all in use: %v", err)
	}
	b.holds(a, data("a"))
	b.holds(get("d"), data("d"))
	b.holds(c, data("c"))
	before := b.whole()
	if _, err := b.fetcher(func(c *fetch.Config) { c.Bytes = 500 }).Fetch(t.Context(), contents["b"], nil); errs.Of(err) != errs.CacheFull || b.whole() != before {
		t.Errorf("more than all that may be kept: %v, for which %d of %d contents are left", err, b.whole(), before)
	}
}

// partial lays what a fetch has left that did not come to its end: files, and a
// journal of another list of them.
func (b *bench) partial(digest string, files map[string]string) (dir string) {
	b.Helper()
	dir = filepath.Join(b.dir, "partial", strings.TrimPrefix(digest, "sha256:")+"-1")
	for name, data := range files {
		name = filepath.Join(dir, "files", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(data), 0o600)); err != nil {
			b.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "ranges"), []byte("another list\n0\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	return dir
}

// What was being fetched when the object was another does not get in the way.
func TestFilesOfAnotherListAreNotUsed(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": "as it should be"}
	c := b.put("m", files)
	b.partial(c.Digest, map[string]string{"1/model.onnx": "as it was, and longer than that", "1/more": "gone by now"})
	got, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(got, files)
}

// What nobody goes on to fetch makes room, too.
func TestHalfFetchedContentsMakeRoom(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": strings.Repeat("x", 1000)}
	c := b.put("m", files)
	left := b.partial(strings.Repeat("0", 64), map[string]string{"1/model.onnx": strings.Repeat("y", 2000)})
	got, err := b.fetcher(func(c *fetch.Config) { c.Bytes = 2500 }).Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(got, files)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was left is there still: %v", err)
	}
}

// A connection that always breaks in the middle brings the whole at last: what
// came by one attempt is not fetched by the next.
func TestARangeGoesOnWhereItEnded(t *testing.T) {
	b := newBench(t)
	files := map[string]string{"1/model.onnx": weights(2)[:1<<20]}
	c := b.put("m", files)
	var asked []string // in turn
	b.store.Fail(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Range") == "" {
			return false
		}
		asked = append(asked, r.Header.Get("Range"))
		return len(asked) <= 6 && truncate(w, r) // more often than one run asks
	})
	got, err := b.fetcher(patient).Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(got, files)
	for i := range asked[1:] {
		if asked[i+1] <= asked[i] && len(asked[i+1]) == len(asked[i]) || strings.HasPrefix(asked[i+1], "bytes=0-") {
			t.Errorf("asked for %v", asked)
			break
		}
	}
}

// A worker does not wait for another to close what it must not use.
func TestDamagedFilesThatAreInUse(t *testing.T) {
	b := newBench(t)
	c := b.put("m", map[string]string{"1/model.onnx": "weights"})
	used, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(used.Dir(), "model.onnx"), []byte("WEIGHTS"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.fetcher().Fetch(t.Context(), c, nil); errs.Of(err) != errs.FilesChanged || !strings.Contains(err.Error(), "another worker") {
		t.Errorf("while they are in use: %v", err)
	}
	if err := used.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := b.fetcher().Fetch(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.holds(again, map[string]string{"1/model.onnx": "weights"})
}

func TestContentsThatCannotBeFetched(t *testing.T) {
	b := newBench(t)
	digest := "sha256:" + strings.Repeat("0", 64)
	for name, c := range map[string]source.Content{
		"no digest":         {ModelURL: "s3://b/m", URL: "s3://b/m/1"},
		"another digest":    {ModelURL: "s3://b/m", URL: "s3://b/m/1", Digest: "md5:0"},
		"version elsewhere": {ModelURL: "s3://b/m", URL: "s3://b/n/1", Digest: digest},
		"dots":              {ModelURL: "s3://b/m", URL: "s3://b/m/..", Digest: digest},
	} {
		if _, err := b.fetcher().Fetch(t.Context(), c, nil); errs.Of(err) != errs.LoadFailed {
			t.Errorf("%s: %v", name, err)
		}
	}
}
