package view_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/scheduler/internal/view"
)

// told notes what a view says, sorted since the order is of no weight.
type told []string

func (t *told) Configure(ref infer.ModelRef, c *modelconfig.Config) {
	*t = append(*t, fmt.Sprintf("configure %v max %d", ref, c.MaxBatchSize))
}

func (t *told) Remove(ref infer.ModelRef) { *t = append(*t, fmt.Sprintf("remove %v", ref)) }

func (t *told) take() []string {
	list := slices.Sorted(slices.Values(*t))
	*t = nil
	return list
}

func value(maxBatch int32, versions ...*nereidv1.ModelVersion) *nereidv1.ModelValue {
	return &nereidv1.ModelValue{Versions: versions, Config: &inference.ModelConfig{
		Name: "m", Backend: "echo", MaxBatchSize: maxBatch,
		Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_FP32, Dims: []int64{4}}},
		Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_FP32, Dims: []int64{4}}},
	}}
}

func version(number int64, generation uint64) *nereidv1.ModelVersion {
	return &nereidv1.ModelVersion{Version: number, Generation: generation, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE}
}

func TestViewFollowsTheBucket(t *testing.T) {
	gone, bad := version(3, 1), version(4, 1)
	gone.Desired = nereidv1.DesiredState_DESIRED_STATE_UNLOADED
	bad.Problem = "no file"
	var loop told
	c := view.New(&loop, "default")
	steps := []struct {
		name  string
		value *nereidv1.ModelValue
		want  []string
	}{
		{"first", value(2, version(1, 1), version(2, 1), gone, bad), []string{"configure m/1@1 max 2", "configure m/2@1 max 2"}},
		{"again", value(2, version(1, 1), version(2, 1), gone, bad), nil},
		{"new content", value(8, version(1, 2), version(2, 1)), []string{"configure m/1@2 max 8", "remove m/1@1"}},
		{"a problem", &nereidv1.ModelValue{Problem: "broken"}, []string{"remove m/1@2", "remove m/2@1"}},
		{"back", value(8, version(1, 3)), []string{"configure m/1@3 max 8"}},
		{"deleted", nil, []string{"remove m/1@3"}},
	}
	for _, step := range steps {
		if err := c.Set("m", step.value); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if diff := cmp.Diff(step.want, loop.take()); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
}

func TestModelsOfOtherPoolsAreNotTaken(t *testing.T) {
	var loop told
	c := view.New(&loop, "large")
	in := func(pool string) *nereidv1.ModelValue {
		v := value(2, version(1, 1))
		v.Pool = pool
		return v
	}
	for _, step := range []struct {
		pool string
		want []string
	}{{"", nil}, {"large", []string{"configure m/1@1 max 2"}}, {"default", []string{"remove m/1@1"}}} {
		if err := c.Set("m", in(step.pool)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, loop.take()); diff != "" {
			t.Errorf("in pool %q: %s", step.pool, diff)
		}
	}
}

func TestBadConfigurationChangesNothing(t *testing.T) {
	var loop told
	c := view.New(&loop, "default")
	if err := c.Set("m", value(2, version(1, 1))); err != nil {
		t.Fatal(err)
	}
	loop.take()
	if err := c.Set("m", value(-2, version(1, 2))); err == nil {
		t.Error("a negative max_batch_size is taken")
	}
	if got := loop.take(); got != nil {
		t.Errorf("told %v", got)
	}
}
