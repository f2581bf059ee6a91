package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/decisionlog"
)

// limited is the configuration of a model whose executions take so long and need
// one of the resource r.
func limited(micros, priority int) string {
	return strings.Replace(echo(micros), "KIND_CPU", fmt.Sprintf("KIND_CPU rate_limiter { resources { name: \"R\" count: 1 } priority: %d }", priority), 1)
}

// turns is what a decision log tells of the turns of two models.
type turns struct {
	// together is the most executions that were under way, ofInstance of one instance.
	together, ofInstance int
	// gaps are how many batches of the flooded model went between two of the other,
	// while requests of both waited.
	gaps []int
	// ahead is the most credits for pipelined batches that an instance offered.
	ahead int
}

// turnsOf reads a decision log.
func turnsOf(t *testing.T, path, flooded, other string) turns {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // it was read
	log, err := decisionlog.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var found turns
	waiting, of := make(map[string]int), make(map[infer.InstanceID]string)
	running := make(map[infer.InstanceID]int)
	gap, all := -1, 0 // less than 0: one of the models did not wait
	for {
		var step decisionlog.Step
		if err := log.Next(&step); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		switch e := step.Event; e.Kind {
		case core.Submit:
			waiting[e.Item.Model.Name]++
		case core.Granted:
			of[e.Grant.Instance] = e.Grant.Model.Name
			found.ahead = max(found.ahead, e.Grant.Pipelined)
		case core.InstanceFree:
			running[e.Ended.Instance]--
			all--
		}
		for _, d := range step.Decisions {
			if d.Kind != core.Dispatch {
				continue
			}
			running[d.Instance]++
			all++
			found.together, found.ofInstance = max(found.together, all), max(found.ofInstance, running[d.Instance])
			model := of[d.Instance]
			waiting[model] -= len(d.Units)
			switch {
			case waiting[flooded] == 0 || waiting[other] == 0:
				gap = -1
			case model == other && gap >= 0:
				found.gaps = append(found.gaps, gap)
				gap = 0
			case model == other:
				gap = 0
			case gap >= 0:
				gap++
			}
		}
	}
}

// flood keeps a model flooded by so many clients until stop is called.
func (s *server) flood(model string, clients int) (stop func()) {
	var asking sync.WaitGroup
	var over atomic.Bool
	for range clients {
		asking.Go(func() {
			for !over.Load() {
				s.ask(model)
			}
		})
	}
	return func() {
		over.Store(true)
		asking.Wait()
	}
}

func (s *server) ask(model string) {
	body := `{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[7]}]}`
	if status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/"+model+"/infer", body); status != http.StatusOK {
		s.t.Errorf("%s: %d %s", model, status, text)
	}
}

// TestAFloodedModelLeavesAnotherItsTurns floods one of two models. With the rate
// limiter only one of the executions runs that share a resource, and the other
// model's requests have their turns by its priority, however many wait for the
// flooded one. Without it both run at once.
func TestAFloodedModelLeavesAnotherItsTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		flags    []string
		priority int // of the other model; that of the flooded one is 1
		together int
	}{
		"equal priorities":          {[]string{"--rate-limit=execution_count"}, 1, 1},
		"the other is rarer":        {[]string{"--rate-limit=execution_count"}, 3, 1},
		"as many as are configured": {[]string{"--rate-limit=execution_count", "--rate-limit-resource=r:2"}, 1, 2},
		"without a rate limiter":    {nil, 3, 2},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "run.log")
			s := start(t, repository(t, map[string]string{
				"flooded/config.pbtxt": limited(2000, 1), "flooded/1/.keep": "",
				"other/config.pbtxt": limited(2000, tt.priority), "other/1/.keep": "",
			}), append(tt.flags, "--decision-log="+path)...)
			stop := s.flood("flooded", 12)
			var asking sync.WaitGroup
			for range 4 {
				asking.Go(func() {
					for range 15 {
						s.ask("other")
					}
				})
			}
			asking.Wait()
			stop()
			s.stop()
			got := turnsOf(t, path, "flooded", "other")
			if got.together != tt.together {
				t.Errorf("%d executions ran at once, want %d", got.together, tt.together)
			}
			if tt.together > 1 {
				return
			}
			if len(got.gaps) < 5 {
				t.Fatalf("the models hardly ever waited together: %v", got.gaps)
			}
			for _, gap := range got.gaps {
				if gap > tt.priority+1 || gap < tt.priority-1 {
					t.Errorf("%d batches of the flooded model went between two of the other, want %d, give or take one: %v", gap, tt.priority, got.gaps)
				}
			}
		})
	}
}

// TestNothingIsPipelinedUnderTheRateLimiter has a worker in a process of its own offer
// credits for pipelined batches, of which none is used.
func TestNothingIsPipelinedUnderTheRateLimiter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.log")
	s := startCluster(t, repository(t, map[string]string{"m/config.pbtxt": limited(200, 1), "m/1/.keep": ""}),
		"--rate-limit=execution_count", "--decision-log="+path)
	stop := s.flood("m", 8)
	for range 200 {
		s.ask("m")
	}
	stop()
	s.stop()
	got := turnsOf(t, path, "m", "")
	if got.ahead == 0 || got.ofInstance != 1 {
		t.Errorf("an instance had %d batches, want 1; it offered %d credits for pipelined ones, want some", got.ofInstance, got.ahead)
	}
}

// TestALoadThatCouldNeverRunIsRefused has the scheduler's setting refuse a load.
func TestALoadThatCouldNeverRunIsRefused(t *testing.T) {
	s := start(t, repository(t, map[string]string{
		"fits/config.pbtxt": limited(0, 1), "fits/1/.keep": "",
		"large/config.pbtxt": strings.ReplaceAll(limited(0, 1), "\" count: 1", "\" count: 3"), "large/1/.keep": "",
	}), "--model-control-mode=explicit", "--load-model=fits", "--rate-limit=execution_count", "--rate-limit-resource=R:2")
	s.ask("fits")
	status, text := s.do(http.MethodPost, s.HTTP+"/v2/repository/models/large/load", "")
	for _, want := range []string{
		`Resource count for \"r\" is limited to 2 which will prevent scheduling of one or more model instances, the minimum required count is 3`,
		"--rate-limit-resource=r:3",
	} {
		if status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%d %s, want %q", status, text, want)
		}
	}
	s.ask("fits")
}
