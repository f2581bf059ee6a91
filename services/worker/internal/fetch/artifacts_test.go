package fetch_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/fetch"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

func TestGivenFilesComeFromTheControlPlane(t *testing.T) {
	store, err := bus.Open(t.Context(), bus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := newBench(t)
	files := map[string]string{"1/model.onnx": weights(8), "1/empty": "", "warmup/sample": "w", "own.tgz": "packed"}
	c := b.put("m", files) // for the digest
	c.ModelURL, c.URL = "nats://artifacts/set", "nats://artifacts/set/1"
	f, err := fetch.New(fetch.Config{Dir: filepath.Join(b.dir, "given"), Concurrency: 2},
		fetch.ByScheme{Artifacts: fetch.Artifacts{Objects: store.Objects()}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Fetch(t.Context(), c, nil); errs.Of(err) != errs.FilesChanged {
		t.Errorf("files that nobody gave: %v", err)
	}
	put := func(name, data string) {
		if err := store.Objects().Put(t.Context(), name, strings.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range files {
		put("set/"+name, data)
	}
	put("set/config.pbtxt", "not of the content")
	put("set", `[{"name":"1/empty","size":0},{"name":"1/model.onnx","size":17825792},{"name":"config.pbtxt","size":18},{"name":"warmup/sample","size":1},{"name":"own.tgz","size":6}]`)
	var got source.Files
	if got, err = f.Fetch(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	b.holds(got, files)
	put("bad", `[{"name":"../../escape","size":1},{"name":"1/../../../escape","size":1}]`)
	c.ModelURL, c.URL, c.Digest = "nats://artifacts/bad", "nats://artifacts/bad/1", "sha256:"+strings.Repeat("0", 64)
	if _, err := f.Fetch(t.Context(), c, nil); errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "no name of a file") {
		t.Errorf("names that lead elsewhere: %v", err)
	}
}
