package dispatcher

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Requests go to the scheduler of their model's pool, and what is said of them
// by their identity alone reaches the way that they took.
func TestRequestsTakeTheWayOfTheirPool(t *testing.T) {
	scenes := make(map[string]*scene)
	opened := 0
	p := NewPools(func(pool string) *Dispatcher {
		opened++
		scenes[pool] = newScene(t)
		return scenes[pool].d
	}, "small")
	scenes["small"].connect()
	submit := func(pool string, number uint64) *infer.Request {
		p.to(pool) // so that its scene is there
		r := scenes[pool].request(0)
		r.Pool, r.Work.Request.Number = pool, number
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
	if diff := cmp.Diff([]uint32{1, 1}, large.sent); diff != "" {
		t.Errorf("of the large pool (-want +got):\n%s", diff)
	}
	p.Respond(&infer.Response{Work: second.Work, Final: true})
	p.Respond(&infer.Response{Work: first.Work, Final: true})
	p.Respond(&infer.Response{Work: first.Work, Final: true}) // is over
	p.Cancel(third.Work.Request)
	for pool, want := range map[string][]string{"small": {"result"}, "large": {"result"}} {
		if diff := cmp.Diff(want, scenes[pool].answers); diff != "" {
			t.Errorf("answers of %s (-want +got):\n%s", pool, diff)
		}
	}
	if large.cancelled != 1 {
		t.Errorf("%d requests were cancelled, want 1", large.cancelled)
	}
}
