package e2e

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
)

// resumed finds in the log how much of a fetch was there before.
var resumed = regexp.MustCompile(`"msg":"files fetched".*"resumed_bytes":([1-9]\d*)`)

// denied finds in the log that the store gave nothing to the registry.
var denied = regexp.MustCompile(`"msg":"repository has an oddity".*store_denied|"msg":"repository has an oddity".*AccessDenied`)

// A worker that is killed while it fetches leaves nothing that is taken for
// whole, and the next one goes on where it ended.
func TestFetchOfAKilledProcessGoesOn(t *testing.T) {
	store := objectstore.Start(t)
	store.Put("repo/big/config.pbtxt", echo(0))
	store.Put("repo/big/1/weights", strings.Repeat("weights ", 3<<20)) // three ranges
	held := make(chan bool, 10)
	var ranges atomic.Int32
	store.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		// The registry reads the file from its beginning to its end, the worker by
		// ranges, of which the third and later ones never end.
		if !strings.HasSuffix(r.URL.Path, "weights") || r.Header.Get("Range") == "bytes=0-25165823" || ranges.Add(1) < 3 {
			return false
		}
		held <- true
		<-r.Context().Done()
		return true
	})
	cache := "--cache-dir=" + t.TempDir()
	first := launch(t, store.URL()+"/repo", cache, "--download-concurrency=1")
	select {
	case <-held:
	case <-time.After(patience):
		t.Fatal("waited in vain for a fetch of the third range")
	}
	first.signal(syscall.SIGKILL)
	first.exit()
	store.Fail(nil)

	second := start(t, store.URL()+"/repo", cache)
	if !resumed.MatchString(second.text()) {
		t.Error("the log tells of no fetch that was resumed")
	}
	if status, text := second.do(http.MethodPost, second.HTTP+"/v2/models/big/infer", one); status != http.StatusOK {
		t.Errorf("infer: %d %s", status, text)
	}
}

// A store and a disk are polled together: what arrives in parts is loaded when
// it is whole, and a store that is away takes nothing away.
func TestStoresArePolledBesideDirectories(t *testing.T) {
	store := objectstore.Start(t)
	store.Put("repo/remote/config.pbtxt", echo(0))
	store.Put("repo/remote/1/x", "x")
	s := start(t, repository(t, map[string]string{"local/config.pbtxt": echo(0), "local/1/.keep": ""}),
		"--model-repository", store.URL()+"/repo", "--model-control-mode=poll", "--repository-poll-secs=1", "--cache-dir="+t.TempDir())
	for _, model := range []string{"local", "remote"} {
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", one); status != http.StatusOK {
			t.Errorf("%s: %d %s", model, status, text)
		}
	}
	// A version whose model file has not come is no model yet.
	store.PutAt("repo/later/1/notes", "n", time.Now())
	store.PutAt("repo/later/config.pbtxt", "backend: \"onnxruntime\"\n"+echo(0)[strings.Index(echo(0), "max_batch"):], time.Now())
	s.awaitIndex(`"name":"later","state":"UNAVAILABLE"`, "is not complete")
	store.PutAt("repo/later/config.pbtxt", echo(0), time.Now())
	store.PutAt("repo/later/1/x", "x", time.Now())
	s.awaitIndex(`"name":"later","version":"1","state":"READY"`)

	away := func(w http.ResponseWriter, _ *http.Request) bool {
		objectstore.Refuse(w, http.StatusForbidden, "AccessDenied")
		return true
	}
	store.Fail(away)
	s.eventually("the log to say that the store denies", func() bool { return denied.MatchString(s.text()) })
	for _, model := range []string{"local", "remote", "later"} {
		if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", one); status != http.StatusOK {
			t.Errorf("%s, while the store denies: %d %s", model, status, text)
		}
	}
	store.Fail(nil)
	store.PutAt("repo/remote/2/x", "y", time.Now())
	s.awaitIndex(`"name":"remote","version":"2","state":"READY"`)
}

// awaitIndex waits until the repository's index has all texts.
func (s *server) awaitIndex(want ...string) {
	s.t.Helper()
	var text string
	defer func() {
		if s.t.Failed() {
			s.t.Logf("index: %s", text)
		}
	}()
	s.eventually("an index with "+strings.Join(want, " and "), func() bool {
		_, text = s.do(http.MethodPost, s.HTTP+"/v2/repository/index", "")
		return !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(text, w) })
	})
}
