package core_test

import (
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestBudgetIsNotExceeded(t *testing.T) {
	b := core.NewBudget(100)
	for _, c := range []struct {
		take int64
		ok   bool
		held int64
	}{{60, true, 60}, {41, false, 60}, {40, true, 100}, {1, false, 100}} {
		if err := b.Take(c.take); (err == nil) != c.ok || err != nil && errs.Of(err) != errs.MemoryFull || b.Held() != c.held {
			t.Errorf("after %d more: %v, %d held, want %d", c.take, err, b.Held(), c.held)
		}
	}
	b.Give(60)
	if err := b.Take(60); err != nil || b.Most(1000) != 100 || b.Most(10) != 10 {
		t.Errorf("what was given back: %v; most %d, %d", err, b.Most(1000), b.Most(10))
	}
}

func TestBudgetWithoutBound(t *testing.T) {
	b := core.NewBudget(0)
	if err := b.Take(1 << 60); err != nil || b.Held() != 1<<60 || b.Most(7) != 7 {
		t.Errorf("%v, %d held, most %d", err, b.Held(), b.Most(7))
	}
	var none *core.Budget
	if err := none.Take(1 << 60); err != nil || none.Most(7) != 7 {
		t.Errorf("no budget: %v, most %d", err, none.Most(7))
	}
	none.Give(1 << 60)
}

func TestBudgetIsWholeAfterwards(t *testing.T) {
	b := core.NewBudget(50)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 1000 {
				if b.Take(10) == nil {
					b.Give(10)
				}
			}
		})
	}
	clients.Wait()
	if b.Held() != 0 {
		t.Errorf("%d bytes are held by nobody", b.Held())
	}
}
