package status_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/internal/status"
)

// text reads a message as a person writes it.
func text[T proto.Message](t *testing.T, m T, json string) T {
	t.Helper()
	if err := protojson.Unmarshal([]byte(json), m); err != nil {
		t.Fatalf("%v in %s", err, json)
	}
	return m
}

func entry[T any](v T, revision uint64) status.Entry[T] {
	return status.Entry[T]{Value: v, Revision: revision}
}

// well is a cluster in which nothing is wrong: the model m on two workers.
func well(t *testing.T) *status.View {
	t.Helper()
	service := func(json string) map[string]status.Entry[*nereidv1.ServiceValue] {
		v := text(t, &nereidv1.ServiceValue{}, json)
		return map[string]status.Entry[*nereidv1.ServiceValue]{v.GetId(): entry(v, 30)}
	}
	leader := func(holder string) status.Entry[*nereidv1.LeaderValue] {
		return entry(&nereidv1.LeaderValue{Holder: holder, Address: holder + ":8031"}, 12)
	}
	s := &status.View{
		Models: map[string]status.Entry[*nereidv1.ModelValue]{
			"m": entry(text(t, &nereidv1.ModelValue{}, `{"name":"m","versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_SERVE"}]}`), 40),
		},
		Workers: make(map[string]status.Entry[*nereidv1.WorkerValue]),
		Behind:  map[string]bool{"w1": false, "w2": true},
		Services: map[string]map[string]status.Entry[*nereidv1.ServiceValue]{
			status.Gateway:   service(`{"id":"g","epoch":"7","version":"1.4.0","state":"STATE_READY","address":"g:8021"}`),
			status.Scheduler: service(`{"id":"s","state":"STATE_READY","load":0.25,"waiting":"3","running":"2"}`),
			status.Registry:  service(`{"id":"r","state":"STATE_READY"}`),
		},
		Leaders: map[string]status.Entry[*nereidv1.LeaderValue]{"registry": leader("r"), "pool.default": leader("s")},
	}
	for _, id := range []string{"w1", "w2"} {
		s.Workers[id] = entry(text(t, &nereidv1.WorkerValue{}, `{"device":{"kind":"DEVICE_KIND_CPU"},"memory_used_bytes":"100","memory_budget_bytes":"200"}`), 9)
		s.Assigned = append(s.Assigned, status.Assigned{Worker: id, Version: text(t, &nereidv1.AssignedVersion{}, `{"model":{"name":"m","version":"1","generation":"2"},"groups":[{"count":2}]}`)})
		s.Runs = append(s.Runs, status.Runs{Worker: id, Version: text(t, &nereidv1.WorkerVersion{}, `{"model":{"name":"m","version":"1","generation":"2"},"state":"STATE_READY","instances":[{"state":"STATE_READY"},{"state":"STATE_READY"}]}`)})
	}
	return s
}

func TestWhatIsTold(t *testing.T) {
	s := well(t)
	s.Queues = []*nereidv1.QueueStatus{
		text(t, &nereidv1.QueueStatus{}, `{"pool":"default","model":{"name":"n"}}`),
		text(t, &nereidv1.QueueStatus{}, `{"pool":"default","model":{"name":"m"},"waiting":"3"}`),
	}
	s.Workers["w1"].Value.Restarts, s.Workers["w1"].Value.LastExit = 2, "signal: killed"
	want := text(t, &nereidv1.ClusterStatus{}, `{
	  "services": [
	    {"role":"gateway","id":"g","address":"g:8021","release":"1.4.0","state":"STATE_READY","epoch":"7"},
	    {"role":"registry","id":"r","state":"STATE_READY","epoch":"30"},
	    {"role":"scheduler","id":"s","state":"STATE_READY","epoch":"30","load":0.25,"waiting":"3","running":"2"},
	    {"role":"worker","id":"w1","state":"STATE_READY","epoch":"9"},
	    {"role":"worker","id":"w2","state":"STATE_READY","epoch":"9"}],
	  "leaders": [
	    {"role":"pool.default","holder":"s","epoch":"12","address":"s:8031"},
	    {"role":"registry","holder":"r","epoch":"12","address":"r:8031"}],
	  "models": [{"name":"m","pool":"default","versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_SERVE","workers":[
	    {"worker_id":"w1","state":"STATE_READY","ready":2,"assigned":2},
	    {"worker_id":"w2","state":"STATE_READY","ready":2,"assigned":2}]}]}],
	  "workers": [
	    {"id":"w1","device":{"kind":"DEVICE_KIND_CPU"},"memory_used_bytes":"100","memory_budget_bytes":"200","ready":2,"instances":2,"restarts":2,"last_exit":"signal: killed"},
	    {"id":"w2","device":{"kind":"DEVICE_KIND_CPU"},"memory_used_bytes":"100","memory_budget_bytes":"200","ready":2,"instances":2,"behind":true}],
	  "queues": [{"pool":"default","model":{"name":"m"},"waiting":"3"},{"pool":"default","model":{"name":"n"}}]}`)
	if diff := cmp.Diff(want, status.Of(s), protocmp.Transform()); diff != "" {
		t.Errorf("the cluster (-want +got):\n%s", diff)
	}
}

// A model takes what was measured, or what its files have where that is more:
// small ones find room in what the process had.
func TestMemoryIsOfTensorsAndModels(t *testing.T) {
	s := well(t)
	s.Models["m"].Value.Versions[0].Bytes = 30
	s.Runs[0].Version.MemoryBytes = 50
	s.Runs = append(s.Runs, status.Runs{Worker: "w1", Version: text(t, &nereidv1.WorkerVersion{}, `{"model":{"name":"m","version":"1","generation":"2"},"state":"STATE_LOADING"}`)})
	workers := status.Of(s).GetWorkers()
	if measured, files := workers[0].GetMemoryUsedBytes(), workers[1].GetMemoryUsedBytes(); measured != 150 || files != 130 {
		t.Errorf("a measured model: %d, want 150; a small one: %d, want 130", measured, files)
	}
}

func TestProblems(t *testing.T) {
	model := func(json string) func(*testing.T, *status.View) {
		return func(t *testing.T, s *status.View) { s.Models["m"] = entry(text(t, &nereidv1.ModelValue{}, json), 1) }
	}
	ensembleOf := func(step string) func(*testing.T, *status.View) {
		return func(t *testing.T, s *status.View) {
			s.Models["e"] = entry(text(t, &nereidv1.ModelValue{}, `{"name":"e","versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_SERVE"}],
				"config":{"ensemble_scheduling":{"step":[{"model_name":"`+step+`"}]}}}`), 1)
		}
	}
	state := func(json string) func(*testing.T, *status.View) {
		return func(t *testing.T, s *status.View) {
			for i := range s.Runs {
				s.Runs[i].Version = text(t, &nereidv1.WorkerVersion{}, json)
			}
		}
	}
	for name, tt := range map[string]struct {
		edit func(*testing.T, *status.View)
		want []string
	}{
		"none": {func(*testing.T, *status.View) {}, nil},
		"nobody is there": {
			func(_ *testing.T, s *status.View) { *s = status.View{} },
			[]string{"no registry leads: models are neither loaded nor moved", "no gateway is there to take requests", "no worker is there to run models"},
		},
		"a pool without a scheduler": {
			func(t *testing.T, s *status.View) {
				model(`{"name":"m","pool":"large","versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_SERVE"}]}`)(t, s)
			},
			[]string{"no scheduler holds the pool large: requests for its models wait, and then fail as no_scheduler: start a scheduler with --pool=large, or see whether it reaches NATS"},
		},
		"a pool of workers alone": {
			func(_ *testing.T, s *status.View) { s.Workers["w2"].Value.Labels = map[string]string{"pool": "spare"} },
			[]string{"no scheduler holds the pool spare: requests for its models wait, and then fail as no_scheduler: start a scheduler with --pool=spare, or see whether it reaches NATS"},
		},
		"a scheduler that does not respond": {
			func(_ *testing.T, s *status.View) { s.Unreachable = map[string]string{"default": "it hangs"} },
			[]string{"the scheduler of the pool default does not report its queues: it hangs"},
		},
		"a worker that starts, and one that stops": {
			func(_ *testing.T, s *status.View) {
				s.Workers["w1"].Value.State = nereidv1.State_STATE_LOADING
				s.Workers["w2"].Value.State = nereidv1.State_STATE_UNLOADING
			},
			[]string{"the worker w1 is not ready", "the worker w2 is about to stop"},
		},
		"a worker that was started again just now, and one long ago": {
			func(_ *testing.T, s *status.View) {
				s.Workers["w1"].Value.Restarts, s.Workers["w1"].Value.LastExit, s.Workers["w1"].Value.Unsteady = 3, "exit status 2: panic: boom", true
				s.Workers["w2"].Value.Restarts, s.Workers["w2"].Value.LastExit = 1, "signal: killed"
			},
			[]string{"the worker w1 was started again a moment ago, as start 4: the one before ended with exit status 2: panic: boom"},
		},
		"a device that is sick": {
			func(_ *testing.T, s *status.View) {
				s.Workers["w1"].Value.DeviceProblem = "Xid 79: it has fallen off the bus"
			},
			[]string{"the device of the worker w1 is sick, and its models go to others: Xid 79: it has fallen off the bus"},
		},
		"services that start and stop": {
			func(_ *testing.T, s *status.View) {
				s.Services[status.Gateway]["g"].Value.State = nereidv1.State_STATE_LOADING
				s.Workers["w1"].Value.Leaving = true
			},
			[]string{"the gateway g is not ready: it is when all models are", "the worker w1 is about to stop"},
		},
		"a model that cannot be served": {model(`{"name":"m","problem":"no backend"}`), []string{"model m cannot be served: no backend"}},
		"a change that failed": {
			model(`{"name":"m","failure":"out of memory","versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_SERVE"}]}`),
			[]string{"model m serves an older generation, since the newest failed to load: out of memory"},
		},
		"a version that cannot be served": {
			model(`{"name":"m","versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_SERVE","problem":"no model.onnx"}]}`),
			[]string{"model m version 1 cannot be served: no model.onnx"},
		},
		"a version that nobody runs": {
			func(_ *testing.T, s *status.View) { s.Assigned, s.Runs = nil, nil }, []string{"model m version 1 is on no worker"},
		},
		"a version whose worker is away": {
			func(_ *testing.T, s *status.View) {
				s.Assigned, s.Runs = nil, nil
				s.Lost = map[infer.ModelRef][]string{{Name: "m", Version: 1, Generation: 2}: {"w3"}}
			},
			[]string{"model m version 1 is on no worker: w3, where it was, has not reported for some seconds"},
		},
		"an ensemble, which no worker has": {ensembleOf("m"), nil},
		"an ensemble whose step's model is not loaded": {
			ensembleOf("n"), []string{"model e version 1 is not ready: its step 0 waits for the model n"},
		},
		"a version on fewer workers than it should be": {
			func(_ *testing.T, s *status.View) {
				s.UnderReplicated = map[infer.ModelRef]string{{Name: "m", Version: 1, Generation: 2}: "it asks for 3 workers"}
			},
			[]string{"model m version 1 is not placed as it should be: it asks for 3 workers"},
		},
		"a version that loads": {
			state(`{"model":{"name":"m","version":"1","generation":"2"},"state":"STATE_LOADING"}`), []string{"model m version 1 is not ready yet"},
		},
		"a version that waits to be loaded": {
			state(`{"model":{"name":"m","version":"1","generation":"2"},"state":"STATE_LOADING","cause":"the store denies"}`),
			[]string{"model m version 1 is not ready yet, on w1: the store denies"},
		},
		"a version that failed": {
			state(`{"model":{"name":"m","version":"1","generation":"2"},"state":"STATE_UNAVAILABLE","cause":"bad weights"}`),
			[]string{"model m version 1 failed on w1: bad weights"},
		},
		"a version with fewer instances than it should have": {
			state(`{"model":{"name":"m","version":"1","generation":"2"},"state":"STATE_READY","cause":"no room for a second"}`),
			[]string{"model m version 1 does not run as assigned on w1: no room for a second"},
		},
		"a version on its way while the one before serves": {
			model(`{"name":"m","versions":[{"version":"1","generation":"3","desired":"DESIRED_STATE_SERVE"}],"previous":{"versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_SERVE"}]}}`),
			[]string{"model m version 1 is on no worker"},
		},
		"a version that was unloaded": {
			func(t *testing.T, s *status.View) {
				model(`{"name":"m","versions":[{"version":"1","generation":"2","desired":"DESIRED_STATE_UNLOADED"}]}`)(t, s)
				s.Assigned, s.Runs = nil, nil
			},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := well(t)
			tt.edit(t, s)
			if diff := cmp.Diff(tt.want, status.Of(s).GetProblems()); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// Contents that no value names any more are told as long as a worker has them.
func TestContentsOnTheirWayOut(t *testing.T) {
	s := well(t)
	s.Models = nil
	c := status.Of(s)
	if len(c.GetModels()) != 1 || len(c.GetModels()[0].GetVersions()[0].GetWorkers()) != 2 {
		t.Fatalf("models: %v", c.GetModels())
	}
	if v := c.GetModels()[0].GetVersions()[0]; v.GetDesired() != nereidv1.DesiredState_DESIRED_STATE_UNSPECIFIED {
		t.Errorf("the version is told as %v", v)
	}
}
