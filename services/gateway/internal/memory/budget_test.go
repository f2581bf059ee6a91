package memory_test

import (
	"sync"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

func TestBudgetIsNotExceeded(t *testing.T) {
	b := memory.NewBudget(100)
	for _, c := range []struct {
		take int64
		ok   bool
		held int64
	}{{60, true, 60}, {41, false, 60}, {40, true, 100}, {1, false, 100}} {
		if err := b.Reserve(c.take); (err == nil) != c.ok || err != nil && errs.Of(err) != errs.MemoryFull || b.Reserved() != c.held {
			t.Errorf("after %d more: %v, %d held, want %d", c.take, err, b.Reserved(), c.held)
		}
	}
	b.Release(60)
	if err := b.Reserve(60); err != nil || b.Cap(1000) != 100 || b.Cap(10) != 10 {
		t.Errorf("what was given back: %v; most %d, %d", err, b.Cap(1000), b.Cap(10))
	}
}

func TestBudgetWithoutBound(t *testing.T) {
	b := memory.NewBudget(0)
	if err := b.Reserve(1 << 60); err != nil || b.Reserved() != 1<<60 || b.Cap(7) != 7 {
		t.Errorf("%v, %d held, most %d", err, b.Reserved(), b.Cap(7))
	}
	var none *memory.Budget
	if err := none.Reserve(1 << 60); err != nil || none.Cap(7) != 7 {
		t.Errorf("no budget: %v, most %d", err, none.Cap(7))
	}
	none.Release(1 << 60)
}

func TestBudgetIsWholeAfterwards(t *testing.T) {
	b := memory.NewBudget(50)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 1000 {
				if b.Reserve(10) == nil {
					b.Release(10)
				}
			}
		})
	}
	clients.Wait()
	if b.Reserved() != 0 {
		t.Errorf("%d bytes are held by nobody", b.Reserved())
	}
}
