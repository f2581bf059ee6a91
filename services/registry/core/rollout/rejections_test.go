package rollout_test

import (
	"testing"
	"time"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/rollout"
)

func value(generation uint64, digest string) *nereidv1.ModelValue {
	return &nereidv1.ModelValue{
		Name: "m", Config: &inference.ModelConfig{Name: "m"},
		Versions: []*nereidv1.ModelVersion{{Version: 1, Generation: generation, Digest: digest}},
	}
}

func TestPausesGrowWithTheFailuresOfAContent(t *testing.T) {
	now := time.Unix(0, 0)
	r := rollout.NewRejections(time.Second, 5*time.Second)
	for i, seconds := range []int{1, 2, 4, 5, 5} {
		want := time.Duration(seconds) * time.Second
		v := value(uint64(i+1), "a")
		if got := r.Add("m", v, true, now); got != want || r.Value("m") != v || !r.Passing("m") {
			t.Errorf("after failure %d the pause is %v, want %v", i+1, got, want)
		}
		if got := r.Add("m", value(uint64(i+1), "a"), true, now.Add(time.Second)); got != want-time.Second {
			t.Errorf("the same failure counts twice: %v", got)
		}
		if r.Due("m", now.Add(want-1)) || !r.Due("m", now.Add(want)) {
			t.Errorf("after failure %d it is not due after %v", i+1, want)
		}
	}
	if got := r.Add("m", value(9, "b"), true, now); got != time.Second {
		t.Errorf("the pause after the first failure of another content is %v", got)
	}
	other := value(10, "b")
	other.Config.Backend = "other"
	r.Add("m", value(11, "b"), true, now)
	if got := r.Add("m", other, true, now); got != time.Second {
		t.Errorf("the pause after the first failure of another configuration is %v", got)
	}
	if got := r.Add("n", value(10, "b"), true, now); got != time.Second {
		t.Errorf("the pause of another model is %v", got)
	}
}

func TestABadContentIsNeverDue(t *testing.T) {
	now := time.Unix(0, 0)
	r := rollout.NewRejections(time.Second, time.Minute)
	if r.Value("m") != nil || r.Passing("m") || r.Due("m", now) {
		t.Error("nothing has failed, and something is rejected")
	}
	r.Add("m", value(1, "a"), true, now)
	if got := r.Add("m", value(2, "a"), false, now); got != 0 || r.Passing("m") || r.Due("m", now.Add(time.Hour)) {
		t.Errorf("what is wrong with the content itself is due after %v", got)
	}
	if got := r.Add("m", value(3, "a"), true, now); got != time.Second {
		t.Errorf("after a bad content the pause is %v", got)
	}
	r.Remove("m")
	if r.Value("m") != nil || r.Due("m", now.Add(time.Hour)) {
		t.Error("what was removed is remembered")
	}
}
