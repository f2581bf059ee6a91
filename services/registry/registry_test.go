package registry_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry"
)

func TestScanIsPublishedWholeAndAnnounced(t *testing.T) {
	s := newStore(t)
	root := repository(t, map[string]string{
		"a/config.pbtxt": echoConfig, "a/1/f": "one", "a/2/f": "two",
		"b/config.pbtxt": "backnd: 'echo'", "b/1/f": "",
	})
	r := s.start(root)
	leader := s.announced(0)
	r.logs.await(t, "scan announced")
	if leader.GetHolder() != "test" || !r.Ready() {
		t.Errorf("leader %v, ready %t", leader, r.Ready())
	}
	models, revision := s.models.all(t)
	if revision < leader.GetModelsRevision() || leader.GetModelsRevision() == 0 {
		t.Errorf("announced revision %d, the bucket has %d", leader.GetModelsRevision(), revision)
	}
	a, b := models["a"], models["b"]
	if len(models) != 2 || a.GetProblem() != "" || a.GetConfig().GetBackend() != "echo" || a.GetUrl() != "file://"+filepath.Join(root, "a") {
		t.Errorf("models = %v", models)
	}
	want := []*nereidv1.ModelVersion{{
		Version: 2, Generation: a.GetVersions()[0].GetGeneration(), Digest: a.GetVersions()[0].GetDigest(), Fingerprint: a.GetVersions()[0].GetFingerprint(),
		Bytes: 3, Url: a.GetUrl() + "/2", Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE,
	}}
	if diff := cmp.Diff(want, a.GetVersions(), protoEqual()); diff != "" || want[0].Digest == "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	if !strings.Contains(b.GetProblem(), "did you mean backend?") || b.GetConfig() != nil || b.GetVersions() != nil {
		t.Errorf("the broken model is %v", b)
	}
}

func TestUnchangedFilesWriteNothing(t *testing.T) {
	s := newStore(t)
	root := repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": "one", "b/config.pbtxt": "", "b/1/f": ""})
	r := s.start(root)
	epoch := s.announced(0).GetEpoch()
	_, before := s.models.all(t)
	r.stop()
	s.start(root)
	s.announced(epoch)
	if _, after := s.models.all(t); after != before {
		t.Errorf("the models' revision went from %d to %d", before, after)
	}
}

func TestChangedFilesGetANewGeneration(t *testing.T) {
	s := newStore(t)
	root := repository(t, map[string]string{
		"files/config.pbtxt": echoConfig, "files/1/f": "one",
		"config/config.pbtxt": echoConfig, "config/1/f": "one",
		"same/config.pbtxt": echoConfig, "same/1/f": "one",
	})
	r := s.start(root)
	epoch := s.announced(0).GetEpoch()
	before, _ := s.models.all(t)
	r.stop()
	write(t, filepath.Join(root, "files/1/f"), "two")
	write(t, filepath.Join(root, "config/config.pbtxt"), echoConfig+"max_batch_size: 8")
	s.start(root)
	s.announced(epoch)
	after, _ := s.models.all(t)
	for name, grows := range map[string]bool{"files": true, "config": true, "same": false} {
		was, is := before[name].GetVersions()[0], after[name].GetVersions()[0]
		if (is.GetGeneration() > was.GetGeneration()) != grows || is.GetGeneration() < was.GetGeneration() {
			t.Errorf("%s: generation went from %d to %d", name, was.GetGeneration(), is.GetGeneration())
		}
	}
}

func TestChangedLabelsNeedNoLoad(t *testing.T) {
	s := newStore(t)
	root := repository(t, map[string]string{
		"m/config.pbtxt": echoConfig + `output { name: "z" data_type: TYPE_FP32 dims: 2 label_filename: "labels.txt" }`,
		"m/1/f":          "", "m/labels.txt": "cat\ndog",
	})
	s.startWith(func(c *registry.Config) {
		c.Repositories, c.Control, c.Poll, c.FileQuietPeriod = []string{root}, registry.ControlPoll, registry.Seconds(10*time.Millisecond), 0
	})
	generations := make(map[uint64]bool)
	for _, labels := range [][]string{{"cat", "dog"}, {"cat", "fox"}} {
		write(t, filepath.Join(root, "m/labels.txt"), strings.Join(labels, "\n"))
		s.models.await(t, "labels", func(all map[string]*nereidv1.ModelValue) bool {
			got, err := modelconfig.UnpackLabels(all["m"].GetClassLabels()["z"].GetGzip())
			if err != nil || !slices.Equal(got, labels) {
				return false
			}
			generations[all["m"].GetVersions()[0].GetGeneration()] = true
			return true
		})
	}
	if len(generations) != 1 {
		t.Errorf("generations %v, want one", generations)
	}
}

func TestRemovedModelsAreDeleted(t *testing.T) {
	s := newStore(t)
	root := repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": "", "b/config.pbtxt": echoConfig, "b/1/f": ""})
	r := s.start(root)
	epoch := s.announced(0).GetEpoch()
	r.stop()
	if err := os.RemoveAll(filepath.Join(root, "a")); err != nil {
		t.Fatal(err)
	}
	s.start(root)
	s.announced(epoch)
	if models, _ := s.models.all(t); len(models) != 1 || models["b"] == nil {
		t.Errorf("models = %v, want b alone", models)
	}
}

func TestEmptyRepositoryIsAnnounced(t *testing.T) {
	s := newStore(t)
	s.start(repository(t, nil))
	leader := s.announced(0)
	models, revision := s.models.all(t)
	if len(models) != 0 || leader.GetModelsRevision() == 0 || revision < leader.GetModelsRevision() {
		t.Errorf("models %v at %d, announced %d", models, revision, leader.GetModelsRevision())
	}
}

func TestUnreadableValueIsReplaced(t *testing.T) {
	s := newStore(t)
	s.put(bus.Models, "a", &nereidv1.ModelValue{}) // states no schema
	_, revision := s.models.all(t)
	s.start(repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": ""}))
	s.announced(0)
	models, _ := s.models.all(t)
	if v := models["a"].GetVersions(); len(v) != 1 || v[0].GetGeneration() != revision+1 {
		t.Errorf("a = %v, want one version, of generation %d", models["a"], revision+1)
	}
}

func TestValueOfANewerReleaseStays(t *testing.T) {
	s := newStore(t)
	newer := &nereidv1.ModelValue{Schema: nereidv1.Schema + 1, Name: "a", Problem: "as the newer release wrote it"}
	s.put(bus.Models, "a", newer)
	_, written := s.models.all(t)
	r := s.start(repository(t, map[string]string{"a/config.pbtxt": echoConfig, "a/1/f": ""}))
	r.logs.await(t, "leadership ended")
	r.stop()
	if _, revision := s.models.all(t); revision != written || r.Ready() {
		t.Errorf("the bucket is at revision %d, ready %t", revision, r.Ready())
	}
}

func TestRunNeedsItsRepository(t *testing.T) {
	s := newStore(t)
	missing := filepath.Join(t.TempDir(), "models")
	cfg := registry.Default()
	cfg.Repositories = []string{missing}
	r, err := registry.New(cfg, registry.Deps{Bus: s.bus})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), missing) {
		t.Errorf("Run = %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	tests := []struct {
		name string
		edit func(*registry.Config)
		want string
	}{
		{"default with a repository", func(*registry.Config) {}, ""},
		{"no repository", func(c *registry.Config) { c.Repositories = nil }, "--model-repository"},
		{"nameless repository", func(c *registry.Config) { c.Repositories = []string{""} }, "give a directory"},
		{"repository given twice", func(c *registry.Config) { c.Repositories = []string{"a", "b", "./a/"} }, ""},
		{"cloud repository", func(c *registry.Config) {
			c.Repositories = []string{"s3://bucket/models", "s3://host:9000/bucket", "models"}
		}, ""},
		{"store of an unknown kind", func(c *registry.Config) { c.Repositories = []string{"ftp://host/models"} }, "ftp is no store"},
		{"cloud repository without a bucket", func(c *registry.Config) { c.Repositories = []string{"s3://host:9000"} }, "names no place"},
		{"no holder", func(c *registry.Config) { c.Holder = "" }, "holder id"},
		{"no grace", func(c *registry.Config) { c.WorkerGrace = 0 }, "worker grace"},
		{"no retry", func(c *registry.Config) { c.Retry = -1 }, "retry pause"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := registry.Default()
			cfg.Repositories = []string{"models"}
			tt.edit(&cfg)
			_, err := registry.New(cfg, registry.Deps{})
			if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || errs.Of(err) != errs.ConfigInvalid) {
				t.Errorf("New = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestModelThatFitsNoValueDoesNotHoldUpTheOthers(t *testing.T) {
	s := newStore(t)
	long := strings.Repeat("\x01", 200<<10) // six bytes each in JSON
	root := repository(t, map[string]string{
		"big/config.pbtxt": echoConfig + `parameters { key: "p" value { string_value: "` + long + `" } }`, "big/1/f": "",
		"small/config.pbtxt": echoConfig, "small/1/f": "",
	})
	r := s.start(root)
	epoch := s.announced(0).GetEpoch()
	models, revision := s.models.all(t)
	if !strings.Contains(models["big"].GetProblem(), "shorten its configuration") || models["small"].GetProblem() != "" {
		t.Errorf("problems %q and %q", models["big"].GetProblem(), models["small"].GetProblem())
	}
	r.stop()
	s.start(root)
	s.announced(epoch)
	if _, after := s.models.all(t); after != revision {
		t.Errorf("the same scan writes again: revision %d, then %d", revision, after)
	}
}
