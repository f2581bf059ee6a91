package place_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/resources"
	"github.com/nereid-serving/nereid/services/registry/core/place"
)

func TestAVersionThatNeedsMoreThanThereIsIsRefused(t *testing.T) {
	counts, err := resources.Parse([]string{"r:1", "r:4:0", "s:9:1"})
	if err != nil {
		t.Fatal(err)
	}
	gpus := []place.Worker{{ID: "g0", Kind: gpu, Resources: counts}, {ID: "g1", Kind: gpu, Number: 1, Resources: counts}}
	limit := func(name, n string) string { return `Resource count for "` + name + `" is limited to ` + n + " which" }
	for name, tt := range map[string]struct {
		resource modelconfig.Resource
		gpus     []int32
		edit     func(*place.Version)
		want     string // of the cause; none if it is placed on all GPUs that it lists
	}{
		"as much as each device has":      {modelconfig.Resource{Name: "r", Count: 1}, nil, nil, ""},
		"more than one of the devices":    {modelconfig.Resource{Name: "r", Count: 4}, nil, nil, limit("r", "1")},
		"only where there is enough":      {modelconfig.Resource{Name: "r", Count: 4}, []int32{0}, nil, ""},
		"global, the most of any":         {modelconfig.Resource{Name: "r", Count: 4, Global: true}, nil, nil, ""},
		"global, more than any":           {modelconfig.Resource{Name: "r", Count: 5, Global: true}, nil, nil, limit("r", "4")},
		"of what is not configured there": {modelconfig.Resource{Name: "s", Count: 1}, nil, nil, limit("s", "0")},
		"of what is not configured":       {modelconfig.Resource{Name: "t", Count: 1}, nil, nil, limit("t", "0")},
		"ready since before":              {modelconfig.Resource{Name: "t", Count: 1}, nil, func(v *place.Version) { v.AssignedTo = map[string]bool{"g0": true, "g1": false} }, ""},
		"on its way when it was set": {
			modelconfig.Resource{Name: "t", Count: 1}, nil, func(v *place.Version) { v.AssignedTo = map[string]bool{"g0": false} }, limit("t", "0"),
		},
		"by the caller":     {modelconfig.Resource{Name: "r", Count: 1}, nil, func(v *place.Version) { v.Refused = "so it is" }, "so it is"},
		"by the caller, up": {modelconfig.Resource{Name: "r", Count: 1}, nil, func(v *place.Version) { v.Refused, v.AssignedTo = "so it is", map[string]bool{"g0": true} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := group(gpu, 1, tt.gpus...)
			g.Resources = []modelconfig.Resource{tt.resource}
			v := version("m", 1, g)
			if tt.edit != nil {
				tt.edit(&v)
			}
			got := place.Assign([]place.Version{v}, gpus)
			cause, on := got.Unplaced[v.Model], len(got.Workers["g0"])+len(got.Workers["g1"])
			if want := 2 - len(tt.gpus); tt.want == "" && (cause != "" || on != want) || tt.want != "" && (on != 0 || !strings.Contains(cause, tt.want)) {
				t.Errorf("on %d workers with the cause %q, want %q", on, cause, tt.want)
			}
		})
	}
}
