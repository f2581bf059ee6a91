package artifact_test

import (
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/registry/internal/artifact"
)

func objects(t *testing.T) *bus.Objects {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b.Objects()
}

func names(t *testing.T, from *bus.Objects) []string {
	t.Helper()
	all, err := from.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(all))
}

func TestSharedFilesAreThereAsAWholeUntilTheyAreSwept(t *testing.T) {
	to := objects(t)
	var sets []string
	for _, data := range []string{"one", "two"} {
		dir, err := artifact.Put(t.TempDir(), map[string][]byte{"1/model.onnx": []byte(data), "config.pbtxt": nil})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time nothing is left to do
			if err := artifact.Share(t.Context(), to, dir, 1000); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := artifact.SharedURL(dir), artifact.Scheme+filepath.Base(dir); got != want {
			t.Errorf("URL %s, want %s", got, want)
		}
		sets = append(sets, filepath.Base(dir))
	}
	body, err := to.Open(t.Context(), sets[1]+"/1/model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if string(data) != "two" || err != nil || body.Close() != nil {
		t.Errorf("shared %q, %v", data, err)
	}
	if err := artifact.SweepShared(t.Context(), to, func(url string) bool { return url == artifact.Scheme+sets[1] }); err != nil {
		t.Fatal(err)
	}
	want := []string{sets[1], sets[1] + "/1/model.onnx", sets[1] + "/config.pbtxt"}
	if diff := cmp.Diff(want, names(t, to)); diff != "" {
		t.Errorf("after a sweep:\n%s", diff)
	}
}

func TestSharedFilesAreBounded(t *testing.T) {
	to := objects(t)
	for data, want := range map[string]errs.Reason{strings.Repeat("x", 100): errs.BodyTooLarge, "x": ""} {
		dir, err := artifact.Put(t.TempDir(), map[string][]byte{"1/model.onnx": []byte(data)})
		if err != nil {
			t.Fatal(err)
		}
		if err := artifact.Share(t.Context(), to, dir, 99); errs.Of(err) != want {
			t.Errorf("%d bytes where 99 are allowed: %v", len(data), err)
		}
	}
	if got := names(t, to); len(got) != 2 {
		t.Errorf("kept %v", got)
	}
}

func TestNothingWasEverShared(t *testing.T) {
	if err := artifact.SweepShared(t.Context(), objects(t), func(string) bool { return false }); err != nil {
		t.Error(err)
	}
}
