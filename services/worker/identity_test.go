package worker_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/modelfiles"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// onDisk writes a model's file and returns what names the content.
func onDisk(t *testing.T, dir, text string) func(*nereidv1.ModelValue) {
	t.Helper()
	version := filepath.Join(dir, "1")
	if err := os.MkdirAll(version, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(version, "weights"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tree, err := modelfiles.List(t.Context(), modelfiles.Local{}, dir, version)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := modelfiles.NewDigester(modelfiles.Local{}).Digest(t.Context(), tree)
	if err != nil {
		t.Fatal(err)
	}
	return func(v *nereidv1.ModelValue) {
		v.Url, v.Versions[0].Url, v.Versions[0].Digest = "file://"+dir, "file://"+version, digest
	}
}

// A worker that starts after the files have changed has nothing to serve under
// the old name, and says so; when they are what they were it serves.
func TestOtherFilesDoNotServeUnderAnOldGeneration(t *testing.T) {
	dir := t.TempDir()
	first := onDisk(t, dir, "first")
	second := onDisk(t, dir, "second")
	h := newHarness(t)
	h.model("a", 1, first)
	v := h.applied(h.assign(assigned("a", 1, 1))).GetVersions()[0]
	if v.GetState() != nereidv1.State_STATE_UNAVAILABLE || v.GetReason() != "files_changed" || !strings.Contains(v.GetCause(), "changed since the registry read them") {
		t.Errorf("with other files: %v", v)
	}
	h.model("a", 2, second)
	if diff := cmp.Diff([]string{"a g2 READY  a_0_0:cpu"}, lines(h.applied(h.assign(assigned("a", 2, 1))))); diff != "" {
		t.Error(diff)
	}
}

// A worker that starts in the middle of a swap serves the old generation, where
// its files are still there, until the new one may.
func TestBothContentsOfASwapAreLoaded(t *testing.T) {
	files := onDisk(t, t.TempDir(), "weights")
	h := newHarness(t)
	h.model("a", 2, func(v *nereidv1.ModelValue) {
		files(v)
		old := proto.CloneOf(v)
		old.Versions[0].Generation, old.Config.MaxBatchSize = 1, 4
		v.Previous = &nereidv1.ModelContent{Config: old.GetConfig(), Url: old.GetUrl(), Versions: old.GetVersions()}
	})
	h.assign(assigned("a", 1, 1), assigned("a", 2, 1))
	v := h.await("both generations", func(v *said) bool {
		return len(v.GetVersions()) == 2 && v.GetVersions()[0].GetState() == nereidv1.State_STATE_READY && v.GetVersions()[1].GetState() == nereidv1.State_STATE_READY
	})
	if diff := cmp.Diff([]string{"a g1 READY  a_0_0:cpu", "a g2 READY  a_0_0:cpu"}, lines(v)); diff != "" {
		t.Error(diff)
	}
}
