package dispatcher

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/requests"
)

// Requests go to the scheduler of their model's pool, and what is said of them
// by their identity alone reaches the way that they took.
func TestRequestsTakeTheWayOfTheirPool(t *testing.T) {
	table := requests.New(1)
	scenes := make(map[string]*scene)
	opened := 0
	p := NewPools(func(pool string) *Dispatcher {
		opened++
		scenes[pool] = newScene(t, table, pool)
		return scenes[pool].d
	}, "small")
	small := scenes["small"].connect()
	submit := func(pool string, number uint64) *infer.Request {
		p.to(pool) // so that its scene is there
		r := scenes[pool].request(number)
		if err := p.Submit(r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := submit("small", 1)
	second := submit("large", 2) // waits: its scheduler is not there yet
	third := submit("large", 3)
	if opened != 2 {
		t.Errorf("%d ways were opened, want one to each pool", opened)
	}
	large := scenes["large"].connect()
	for pool, want := range map[*session][]uint32{small: {1}, large: {1, 1}} {
		if diff := cmp.Diff(want, pool.sent); diff != "" {
			t.Errorf("submitted (-want +got):\n%s", diff)
		}
	}
	scenes["small"].d.deps.Pool.Refused(third.Work, nil) // of another pool
	table.Respond(&infer.Response{Work: second.Work, Final: true})
	table.Respond(&infer.Response{Work: first.Work, Final: true})
	table.Respond(&infer.Response{Work: first.Work, Final: true}) // is over
	table.Cancel(third.Work.Request)
	if small.cancelled != 0 || large.cancelled != 1 || table.InFlight() != 1 {
		t.Errorf("%d and %d requests were cancelled, want 0 and 1; %d in flight", small.cancelled, large.cancelled, table.InFlight())
	}
}
