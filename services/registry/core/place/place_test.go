package place_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/core/place"
)

const (
	cpu   = modelconfig.KindCPU
	gpu   = modelconfig.KindGPU
	auto  = modelconfig.KindAuto
	model = modelconfig.KindModel
)

func version(name string, number int64, groups ...modelconfig.InstanceGroup) place.Version {
	return place.Version{Model: infer.ModelRef{Name: name, Version: number, Generation: 1}, Groups: groups}
}

func group(kind modelconfig.DeviceKind, count int, gpus ...int32) modelconfig.InstanceGroup {
	return modelconfig.InstanceGroup{Name: "g", Kind: kind, Count: count, GPUs: gpus}
}

func placed(kind modelconfig.DeviceKind, device int32, count int) place.Group {
	return place.Group{Name: "g", Kind: kind, Device: device, Count: count}
}

func TestAssign(t *testing.T) {
	onCPU := place.Worker{ID: "c", Kind: cpu}
	gpu0, gpu1 := place.Worker{ID: "g0", Kind: gpu}, place.Worker{ID: "g1", Kind: gpu, Number: 1}
	m := infer.ModelRef{Name: "m", Version: 1, Generation: 1}
	on := func(groups ...place.Group) []place.Assigned { return []place.Assigned{{Model: m, Groups: groups}} }
	tests := []struct {
		name     string
		groups   []modelconfig.InstanceGroup
		workers  []place.Worker
		want     map[string][]place.Assigned
		unplaced string
	}{
		{
			"CPU group runs on every CPU worker and on no other",
			[]modelconfig.InstanceGroup{group(cpu, 2)},
			[]place.Worker{onCPU, {ID: "d", Kind: cpu, Number: 1}, gpu0},
			map[string][]place.Assigned{"c": on(placed(cpu, 0, 2)), "d": on(placed(cpu, 1, 2)), "g0": nil},
			"",
		},
		{
			"GPU group without numbers runs on every GPU",
			[]modelconfig.InstanceGroup{group(gpu, 1)},
			[]place.Worker{onCPU, gpu0, gpu1},
			map[string][]place.Assigned{"c": nil, "g0": on(placed(gpu, 0, 1)), "g1": on(placed(gpu, 1, 1))},
			"",
		},
		{
			"GPU group runs on the GPUs that it lists",
			[]modelconfig.InstanceGroup{group(gpu, 1, 1)},
			[]place.Worker{gpu0, gpu1},
			map[string][]place.Assigned{"g0": nil, "g1": on(placed(gpu, 1, 1))},
			"",
		},
		{
			"groups are split by device",
			[]modelconfig.InstanceGroup{group(gpu, 1), group(cpu, 3)},
			[]place.Worker{onCPU, gpu0},
			map[string][]place.Assigned{"c": on(placed(cpu, 0, 3)), "g0": on(placed(gpu, 0, 1))},
			"",
		},
		{
			"without GPUs the group of the next device kind takes over",
			[]modelconfig.InstanceGroup{group(gpu, 1), group(cpu, 3)},
			[]place.Worker{onCPU},
			map[string][]place.Assigned{"c": on(placed(cpu, 0, 3))},
			"",
		},
		{
			"without CPU workers the GPU group is enough",
			[]modelconfig.InstanceGroup{group(cpu, 3), group(gpu, 2)},
			[]place.Worker{gpu1},
			map[string][]place.Assigned{"g1": on(placed(gpu, 1, 2))},
			"",
		},
		{
			"several groups on one worker keep their order",
			[]modelconfig.InstanceGroup{group(cpu, 1), group(cpu, 2)},
			[]place.Worker{onCPU},
			map[string][]place.Assigned{"c": on(placed(cpu, 0, 1), placed(cpu, 0, 2))},
			"",
		},
		{
			"automatic is CPU without GPUs",
			[]modelconfig.InstanceGroup{group(auto, 1)},
			[]place.Worker{onCPU},
			map[string][]place.Assigned{"c": on(placed(cpu, 0, 1))},
			"",
		},
		{
			"automatic is GPU where there is one",
			[]modelconfig.InstanceGroup{group(auto, 1)},
			[]place.Worker{onCPU, gpu0},
			map[string][]place.Assigned{"c": nil, "g0": on(placed(gpu, 0, 1))},
			"",
		},
		{
			"a model that places itself runs anywhere",
			[]modelconfig.InstanceGroup{group(model, 1)},
			[]place.Worker{onCPU},
			map[string][]place.Assigned{"c": on(placed(model, 0, 1))},
			"",
		},
		{
			"GPU group without a GPU has a cause",
			[]modelconfig.InstanceGroup{group(gpu, 1)},
			[]place.Worker{onCPU},
			map[string][]place.Assigned{"c": nil},
			"instance group g of model m has kind KIND_GPU but no GPUs are available: use KIND_CPU, or add a group of it",
		},
		{
			"GPU group without its GPU has a cause",
			[]modelconfig.InstanceGroup{group(gpu, 1, 7)},
			[]place.Worker{gpu0},
			map[string][]place.Assigned{"g0": nil},
			"instance group g of model m specifies invalid or unsupported gpu id: no worker runs on any of GPUs [7]",
		},
		{
			"CPU group on GPU workers alone has a cause",
			[]modelconfig.InstanceGroup{group(cpu, 1)},
			[]place.Worker{gpu0},
			map[string][]place.Assigned{"g0": nil},
			"instance group g of model m has kind KIND_CPU but no worker runs on a CPU: start one or use KIND_GPU",
		},
		{
			"no group has a cause",
			nil,
			[]place.Worker{onCPU},
			map[string][]place.Assigned{"c": nil},
			"model m has no instance group",
		},
		{
			"without workers nothing is amiss yet",
			[]modelconfig.InstanceGroup{group(gpu, 1)},
			nil,
			map[string][]place.Assigned{},
			"",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := placement(tt.want)
			if tt.unplaced != "" {
				want.Unplaced[m] = tt.unplaced
			}
			got := place.Assign([]place.Version{version("m", 1, tt.groups...)}, tt.workers)
			if want.Open = nil; len(tt.workers) > 0 { // it runs on every worker that fits
				want.Open = map[infer.ModelRef]bool{m: true}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("Assign (-want +got):\n%s", diff)
			}
		})
	}
}

func placement(workers map[string][]place.Assigned) place.Placement {
	return place.Placement{
		Workers: workers, Unplaced: map[infer.ModelRef]string{}, UnderReplicated: map[infer.ModelRef]string{},
		WaitingForMemory: map[infer.ModelRef]bool{}, Migrating: map[infer.ModelRef]bool{},
	}
}

func TestAssignKeepsGroupSettings(t *testing.T) {
	g := modelconfig.InstanceGroup{Name: "spare", Kind: cpu, Count: 2, Passive: true, HostPolicy: "near"}
	p := place.Assign([]place.Version{version("m", 1, g)}, []place.Worker{{ID: "c", Kind: cpu}})
	want := []place.Group{{Name: "spare", Kind: cpu, Count: 2, Passive: true, HostPolicy: "near"}}
	if diff := cmp.Diff(want, p.Workers["c"][0].Groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

func TestAssignDoesNotDependOnOrder(t *testing.T) {
	versions := []place.Version{version("b", 1, group(cpu, 1)), version("a", 2, group(cpu, 1)), version("a", 1, group(gpu, 1))}
	workers := []place.Worker{{ID: "x", Kind: cpu}, {ID: "y", Kind: gpu}, {ID: "z", Kind: cpu, Number: 1}}
	want := place.Assign(versions, workers)
	slices.Reverse(versions)
	slices.Reverse(workers)
	if diff := cmp.Diff(want, place.Assign(versions, workers)); diff != "" {
		t.Errorf("reversed (-want +got):\n%s", diff)
	}
	var order []string
	for _, a := range want.Workers["x"] {
		order = append(order, a.Model.String())
	}
	if diff := cmp.Diff([]string{"a/2@1", "b/1@1"}, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}
