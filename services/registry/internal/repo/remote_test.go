package repo_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/testkit/objectstore"
	"github.com/nereid-serving/nereid/services/registry/internal/repo"
)

// stored is a repository in a store, of the given files.
func stored(t *testing.T, files map[string]string) (*objectstore.Server, string) {
	t.Helper()
	store := objectstore.Start(t)
	for name, text := range files {
		store.Put("repo/"+name, text)
	}
	return store, store.URL() + "/repo"
}

func TestRepositoriesInStoresReadAsOnDisks(t *testing.T) {
	files := map[string]string{
		"b/config.pbtxt": config, "b/9/model.onnx": "nine", "b/9/deep/x.bin": "", "b/10/model.onnx": "ten", "b/warmup/sample": "w",
		"a/config.pbtxt": config + `output { name: "l" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" }`,
		"a/1/model.onnx": "one", "a/labels.txt": "cat\ndog", "broken/config.pbtxt": "backnd: 1", "broken/1/model.onnx": "",
		"file": "", ".hidden/x": "",
	}
	_, url := stored(t, files)
	root := tree(t, files)
	remote, local := scan(t, repo.New([]string{url}, repo.Options{Strict: true})), scan(t, repo.New([]string{root}, repo.Options{Strict: true}))
	if len(remote.Models) != 3 || len(remote.Ignored) != 1 {
		t.Fatalf("models %v, ignored %v", remote.Models, remote.Ignored)
	}
	for i, m := range remote.Models {
		l := local.Models[i]
		if m.URL != url+"/"+m.Name || m.Name != l.Name || strings.ReplaceAll(m.Problem, url, root) != l.Problem || !cmp.Equal(m.Labels, l.Labels) {
			t.Errorf("%s at %s: problem %q, want %q", m.Name, m.URL, m.Problem, l.Problem)
		}
		for j, v := range m.Versions {
			if v.Digest != l.Versions[j].Digest || v.Problem != "" || !strings.HasPrefix(v.Fingerprint, "etag:") {
				t.Errorf("%s version %d: %+v, want the digest %s", m.Name, v.Number, v, l.Versions[j].Digest)
			}
		}
	}
}

func TestUnchangedStoresAreOnlyListed(t *testing.T) {
	store, url := stored(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": strings.Repeat("\x00", 300<<10), "n/config.pbtxt": config, "n/1/model.onnx": "n"})
	s := repo.New([]string{url}, repo.Options{Strict: true})
	first := scan(t, s)
	store.Requests()
	if again := scan(t, s); !cmp.Equal(first.Models[0].Versions, again.Models[0].Versions) {
		t.Errorf("%v, then %v", first.Models[0].Versions, again.Models[0].Versions)
	}
	if diff := cmp.Diff([]string{"LIST repo/"}, store.Requests()); diff != "" {
		t.Errorf("requests of a scan without a change:\n%s", diff)
	}
	// One that starts anew knows the digests by what was published.
	next := repo.New([]string{url}, repo.Options{Strict: true})
	v := first.Models[0].Versions[0]
	next.AddDigests(map[string]string{v.Fingerprint: v.Digest})
	scan(t, next)
	if requests := store.Requests(); slices.ContainsFunc(requests, func(r string) bool { return strings.HasSuffix(r, "m/1/model.onnx bytes=0-307199") }) {
		t.Errorf("weights of a known digest are read: %v", requests)
	}
	store.Put("repo/n/1/model.onnx", "other")
	if snap := scan(t, s); snap.Models[1].Versions[0].Digest == first.Models[1].Versions[0].Digest {
		t.Error("a change went unnoticed")
	}
}

func TestAnUploadIsNotReadBeforeItIsThere(t *testing.T) {
	store, url := stored(t, map[string]string{"old/config.pbtxt": config, "old/1/model.onnx": "m"})
	s := repo.New([]string{url}, repo.Options{Strict: true, ObjectQuietPeriod: time.Hour})
	if m := model(t, scan(t, s), "old"); m.Uploading || m.Problem != "" {
		t.Errorf("objects of an hour ago, before the first scan: %+v", m)
	}
	store.PutAt("repo/new/config.pbtxt", config, time.Now().Add(-24*time.Hour))
	store.Put("repo/old/1/more", "m")
	for range 2 {
		snap := scan(t, s)
		for _, name := range []string{"new", "old"} {
			if m := model(t, snap, name); !m.Uploading || m.Config != nil {
				t.Errorf("%s, which changed since the first scan: %+v", name, m)
			}
		}
	}
	young := repo.New([]string{url}, repo.Options{Strict: true, ObjectQuietPeriod: time.Hour})
	store.PutAt("repo/old/1/more", "mm", time.Now())
	if m := model(t, scan(t, young), "old"); !m.Uploading {
		t.Error("a young object does not make its model arriving at the first scan")
	}
	if m, found, err := young.Model(t.Context(), infer.ModelID{Name: "old"}, nil); err != nil || !found || !m.Uploading {
		t.Errorf("asked for by name: %+v, %t, %v", m, found, err)
	}
}

func TestWhatTheConfigurationNamesMustBeThere(t *testing.T) {
	store, url := stored(t, map[string]string{"m/config.pbtxt": config, "m/1/weights": "w"})
	s := repo.New([]string{url}, repo.Options{Strict: true})
	if m := model(t, scan(t, s), "m"); !strings.Contains(m.Problem, "is not complete") || m.Config != nil {
		t.Errorf("without its model file: problem %q", m.Problem)
	}
	store.Put("repo/m/1/model.onnx", "m")
	if m := model(t, scan(t, s), "m"); m.Problem != "" {
		t.Errorf("with it: problem %q", m.Problem)
	}
}

func TestAListingAfterTheReadingMustAgree(t *testing.T) {
	store, url := stored(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "m"})
	store.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "model.onnx") {
			store.Put("repo/m/1/late", "l")
		}
		return false
	})
	s := repo.New([]string{url}, repo.Options{Strict: true})
	if m := model(t, scan(t, s), "m"); !m.Torn || !m.Changing {
		t.Errorf("an object came while the model was read: %+v", m)
	}
	if m := model(t, scan(t, s), "m"); m.Torn || len(m.Versions) != 1 {
		t.Errorf("after that: %+v", m)
	}
}

func TestAStoreThatFailsKeepsItsModels(t *testing.T) {
	store, url := stored(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": "m"})
	root := tree(t, map[string]string{"local/config.pbtxt": config, "local/1/model.onnx": "m"})
	down := func(w http.ResponseWriter, _ *http.Request) bool {
		objectstore.Refuse(w, http.StatusForbidden, "AccessDenied")
		return true
	}
	s := repo.New([]string{url, root}, repo.Options{Strict: true})
	store.Fail(down)
	if _, err := s.Scan(t.Context(), nil); errs.Of(err) != errs.StoreDenied || !strings.Contains(err.Error(), url) {
		t.Errorf("a first scan: %v", err)
	}
	if err := s.Check(t.Context()); errs.Of(err) != errs.StoreDenied {
		t.Errorf("Check = %v", err)
	}
	store.Fail(nil)
	if snap := scan(t, s); len(snap.Models) != 2 || len(snap.Unread) != 0 {
		t.Fatalf("models %v, unread %v", snap.Models, snap.Unread)
	}
	store.Fail(down)
	write(t, filepath.Join(root, "local", "1", "model.onnx"), "changed")
	if snap := scan(t, s); len(model(t, snap, "m").Versions) != 1 || len(snap.Unread) != 1 || !strings.Contains(snap.Unread[0].Cause, "AccessDenied") || snap.Unread[0].Repository != url {
		t.Errorf("models %v, unread %v", snap.Models, snap.Unread)
	}
	if _, found, err := s.Model(t.Context(), infer.ModelID{Name: "local"}, nil); err != nil || !found {
		t.Errorf("a model on the disk: %t, %v", found, err)
	}
	if _, _, err := s.Model(t.Context(), infer.ModelID{Name: "m"}, nil); errs.Of(err) != errs.StoreDenied {
		t.Errorf("a model in the store: %v", err)
	}
}

func TestAReadThatFailsIsTheStoresFault(t *testing.T) {
	store, url := stored(t, map[string]string{"m/config.pbtxt": config, "m/1/model.onnx": strings.Repeat("m", 300<<10)})
	broken := 0
	store.Fail(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "model.onnx") || broken > 2 {
			return false
		}
		broken++
		w.Header().Set("Content-Length", "307200")
		w.Header().Set("ETag", r.Header.Get("If-Match"))
		_, _ = w.Write([]byte(strings.Repeat("m", 1000)))
		return true
	})
	s := repo.New([]string{url}, repo.Options{Strict: true})
	if m := model(t, scan(t, s), "m"); m.Problem != "" || m.Unread || broken != 3 {
		t.Errorf("a read that went on after it broke off %d times: %+v", broken, m)
	}
	store.Fail(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "model.onnx") {
			return false
		}
		objectstore.Refuse(w, http.StatusForbidden, "AccessDenied")
		return true
	})
	store.Put("repo/m/1/model.onnx", strings.Repeat("n", 300<<10))
	if m := model(t, scan(t, s), "m"); !m.Unread || !strings.Contains(m.Versions[0].Problem, "s3:GetObject") {
		t.Errorf("a read that is denied: %+v", m)
	}
}

// TestModelsAreReadAtTheSameTime holds the read of each model up until another's
// is under way too.
func TestModelsAreReadAtTheSameTime(t *testing.T) {
	large := strings.Repeat("m", 300<<10)
	store, url := stored(t, map[string]string{"a/config.pbtxt": config, "a/1/model.onnx": large, "b/config.pbtxt": config, "b/1/model.onnx": large})
	meet := make(chan struct{})
	store.Fail(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "model.onnx") {
			select {
			case meet <- struct{}{}:
			case <-meet:
			case <-r.Context().Done(): // the store gives a read up that nothing comes of
			}
		}
		return false
	})
	snap := scan(t, repo.New([]string{url}, repo.Options{Strict: true}))
	for _, m := range snap.Models {
		if m.Problem != "" || m.Unread || len(m.Versions) != 1 || m.Versions[0].Problem != "" {
			t.Errorf("%s: %+v", m.Name, m)
		}
	}
}

func TestHeadersAreReadByRanges(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "examples", "models", "digits", "1", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	store, url := stored(t, map[string]string{"m/config.pbtxt": "max_batch_size: 8", "m/1/model.onnx": string(data)})
	m := model(t, scan(t, repo.New([]string{url}, repo.Options{MaxBatchSize: 4, Shallow: true})), "m")
	if m.Problem != "" || len(m.Config.GetInput()) == 0 {
		t.Errorf("problem %q, config %v", m.Problem, m.Config)
	}
	if len(data) <= 128<<10 {
		return // read ahead as a whole
	}
	for _, r := range store.Requests() {
		if strings.HasPrefix(r, "GET repo/m/1/model.onnx") && !strings.Contains(r, "bytes=") {
			t.Errorf("the whole file is read: %s", r)
		}
	}
}
