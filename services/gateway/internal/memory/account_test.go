package memory_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

func TestTheFinalResponseTakesThePlaceOfTheRequest(t *testing.T) {
	b := memory.NewBudget(100)
	var a memory.Account
	a.Open(b)
	for _, charge := range []error{a.Receive(60), a.Retain(10), a.Charge(20, false)} {
		if charge != nil {
			t.Fatal(charge)
		}
	}
	if err := a.Charge(60, false); errs.Of(err) != errs.MemoryFull {
		t.Errorf("a response beside the request: %v", err)
	}
	if err := a.Charge(60, true); err != nil || b.Reserved() != 90 {
		t.Errorf("the final response: %v, %d held", err, b.Reserved())
	}
	a.Return(60) // released with the final response
	if b.Reserved() != 90 {
		t.Errorf("%d held", b.Reserved())
	}
	a.Refund(20)
	release := a.Detach(60)
	if a.Close(); b.Reserved() != 60 {
		t.Errorf("%d held by a response that its client has not read", b.Reserved())
	}
	if release(); b.Reserved() != 0 {
		t.Errorf("%d held", b.Reserved())
	}
}

// Work that outlives its call charges nobody: the call's account may serve another call by then.
func TestAClosedAccountRefuses(t *testing.T) {
	b := memory.NewBudget(100)
	var call memory.Account
	call.Open(b)
	late := call.Fork()
	if err := late.Charge(30, false); err != nil || b.Reserved() != 30 {
		t.Fatalf("%v, %d held", err, b.Reserved())
	}
	call.Close()
	late.Close()
	for name, err := range map[string]error{
		"a response": late.Charge(1, true), "bytes": late.Receive(1), "a name": late.Retain(1), "bytes of the call": call.Receive(1),
	} {
		if errs.Of(err) != errs.Canceled {
			t.Errorf("%s after the end: %v", name, err)
		}
	}
	late.Refund(30)
	if b.Reserved() != 0 {
		t.Errorf("%d held", b.Reserved())
	}
	call.Open(b)
	if err := call.Receive(100); err != nil {
		t.Errorf("the next call: %v", err)
	}
	call.Open(nil)
	if b.Reserved() != 0 {
		t.Errorf("%d held after the account moved on", b.Reserved())
	}
}

func TestABudgetWithinAnotherCountsInBoth(t *testing.T) {
	all := memory.NewBudget(100)
	one, other := all.Within(60), all.Within(0)
	if err := one.Reserve(61); errs.Of(err) != errs.TenantMemory || all.Reserved() != 0 {
		t.Errorf("beyond its own bound: %v, %d held of all", err, all.Reserved())
	}
	if err := one.Reserve(60); err != nil {
		t.Error(err)
	}
	if err := other.Reserve(41); errs.Of(err) != errs.MemoryFull || other.Reserved() != 0 {
		t.Errorf("beyond the bound of all: %v, %d held", err, other.Reserved())
	}
	if other.Hold(41); errs.Of(all.Exceeded()) != errs.MemoryFull || errs.Of(other.Exceeded()) != errs.MemoryFull || one.Cap(1000) != 60 || other.Cap(1000) != 100 {
		t.Errorf("exceeded: %v and %v; at most %d and %d", all.Exceeded(), other.Exceeded(), one.Cap(1000), other.Cap(1000))
	}
	one.SetLimit(10)
	if one.Release(60); one.Reserve(11) == nil || all.Reserved() != 41 {
		t.Errorf("%d held", all.Reserved())
	}
}
