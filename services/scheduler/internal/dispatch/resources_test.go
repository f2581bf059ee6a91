package dispatch_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/resources"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

func TestResourcesInUseAndWhatWaitsForThemAreShown(t *testing.T) {
	a := newAnswers()
	limits := core.Config{RateLimit: &core.RateLimit{Counts: resources.Counts{{Name: "r", Device: resources.EachDevice, Count: 3}}}}
	l, w, _ := startLimited(t, a, limits, &modelconfig.Config{Name: "m", Groups: []modelconfig.InstanceGroup{
		{Name: "m", Priority: 1, Resources: []modelconfig.Resource{{Name: "r", Count: 2}, {Name: "g", Global: true, Count: 1}}},
	}})
	for i, name := range []string{"m_0", "m_1"} {
		l.Grant(infer.Grant{Instance: infer.InstanceID{Worker: slot0.Worker, Slot: uint32(i)}, Model: model, Name: name, Device: "gpu:1", Credits: 1})
	}
	shows := func(when string, waiting, used, units string) {
		t.Helper()
		want := `
# HELP nereid_scheduler_resource_units How much there is of it.
# TYPE nereid_scheduler_resource_units gauge
nereid_scheduler_resource_units{device="1",resource="r"} 3
nereid_scheduler_resource_units{device="global",resource="g"} 1
# HELP nereid_scheduler_resource_used_units How much executions hold of a rate-limiter resource on the devices of that number, or of the pool's where the device is global.
# TYPE nereid_scheduler_resource_used_units gauge
nereid_scheduler_resource_used_units{device="1",resource="r"} ` + used + `
nereid_scheduler_resource_used_units{device="global",resource="g"} ` + units + `
# HELP nereid_scheduler_resource_waiting_requests Requests of models whose turn has come and whose rate-limiter resources are not free.
# TYPE nereid_scheduler_resource_waiting_requests gauge
nereid_scheduler_resource_waiting_requests{model="m",version="1"} ` + waiting + `
`
		if err := testutil.CollectAndCompare(l.Resources(), strings.NewReader(want)); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	shows("before requests", "0", "0", "0")
	for n := range uint64(3) {
		if err := l.Submit(request(n+1, &counter{})); err != nil {
			t.Fatal(err)
		}
	}
	shows("while one runs and two wait", "2", "2", "1")
	for range 3 {
		w.finish(<-w.orders)
	}
	shows("after requests", "0", "0", "0")
	if problems, err := testutil.CollectAndLint(l.Resources()); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}
