package batches_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/worker/internal/batches"
)

var slot = infer.InstanceID{Worker: 7, Slot: 1}

func id(number uint64) infer.BatchID { return infer.BatchID{Epoch: 3, Number: number} }

func work(n uint64) infer.Work {
	return infer.Work{Request: infer.RequestID{Origin: 1, Number: n}, Attempt: 1}
}

// batch has requests of the numbers.
func batch(number uint64, requests ...uint64) *infer.Batch {
	b := &infer.Batch{ID: id(number), Instance: slot}
	for _, n := range requests {
		b.Requests = append(b.Requests, &infer.Request{Work: work(n), BatchSize: int64(n)})
	}
	return b
}

// session starts one with a scheduler of epoch 3.
func session(t *testing.T, table *batches.Table) infer.Held {
	t.Helper()
	held, ok := table.Hello(3)
	if _, _, started := table.Connect(3); !ok || !started {
		t.Fatal("no session")
	}
	return held
}

func arrive(t *testing.T, table *batches.Table, b *infer.Batch, missing ...int) {
	t.Helper()
	if err := table.Arrive(b, missing, "fetching"); err != nil {
		t.Fatal(err)
	}
}

func started(h infer.Held, n uint64) bool {
	var set infer.Recent
	for _, s := range h.Started {
		set.Merge(s)
	}
	return set.Lookup(work(n).Request) == infer.Present
}

// units are the requests of a hello's running batches.
func units(h infer.Held) (list []uint64) {
	for _, r := range h.Running {
		for _, u := range r.Units {
			list = append(list, u.Request.Number)
		}
	}
	return list
}

// What is answered while the batch is fetched is among its outcomes, and nothing
// else is passed on.
func TestEndNamesWhatNeverRan(t *testing.T) {
	table := batches.New()
	session(t, table)
	arrive(t, table, batch(1, 1, 2, 3, 4), 0, 2)
	running := false
	table.With(id(1), func(run any) { running = run == "fetching" })
	if !running {
		t.Error("nobody brings the inputs")
	}
	if !table.End(id(1), 3, infer.Canceled) || table.End(id(1), 3, infer.Canceled) {
		t.Error("a request ends not once")
	}
	if table.Fetched(id(1), 0, true, infer.Rejected) || !table.Fetched(id(1), 2, false, 0) {
		t.Error("the batch is not queued with its last input")
	}
	if table.End(id(1), 1, infer.Canceled) || table.With(id(1), func(any) {}) {
		t.Error("the batch is still fetched")
	}
	if diff := cmp.Diff([]bool{false, true, true, false}, table.Left(id(1))); diff != "" {
		t.Error(diff)
	}
	f := &infer.InstanceFree{
		Batch: id(1), Outcomes: []infer.Outcome{infer.Succeeded, infer.Failed}, Ends: []infer.UnitEnd{infer.UnitEnded, infer.UnitMore},
	}
	if table.Free(f) != batches.Now {
		t.Error("the scheduler is not told")
	}
	want := &infer.InstanceFree{
		Batch: id(1), Outcomes: []infer.Outcome{infer.Rejected, infer.Succeeded, infer.Failed, infer.Canceled},
		Ends: []infer.UnitEnd{infer.UnitEnded, infer.UnitEnded, infer.UnitMore, infer.UnitEnded},
	}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Error(diff)
	}
}

// An instance that is free has its credit, and the hello names what is left.
func TestHelloNamesResponsesToCome(t *testing.T) {
	table := batches.New()
	table.Grant(infer.Grant{Instance: slot, Credits: 2})
	session(t, table)
	arrive(t, table, batch(1, 1, 2))
	arrive(t, table, batch(2, 3))
	table.Free(&infer.InstanceFree{Batch: id(1), Outcomes: make([]infer.Outcome, 2), Ends: []infer.UnitEnd{infer.UnitMore, infer.UnitEnded}})
	table.Disconnect()
	held, _ := table.Hello(3)
	if diff := cmp.Diff([]uint64{1, 3}, units(held)); diff != "" || !held.Running[0].InstanceFree || held.Running[1].InstanceFree || !started(held, 2) {
		t.Errorf("the hello %+v: %s", held, diff)
	}
	done := infer.UnitDone{Batch: id(1), Work: work(1)}
	for range 2 { // the second time it is known
		if told := table.Done(&done); told != batches.Nobody {
			t.Errorf("told %v before the session starts", told)
		}
	}
	grants, reports, _ := table.Connect(3)
	if len(grants) != 1 || grants[0].Credits != 1 || len(reports) != 1 || reports[0].Done.Work != work(1) {
		t.Errorf("told first: %+v, %+v", grants, reports)
	}
	if _, left := table.Closed(); left != 1 {
		t.Errorf("%d batches are left, want the second", left)
	}
}

func TestDeposedSchedulersBatchIsReturned(t *testing.T) {
	table := batches.New()
	session(t, table)
	if _, ok := table.Hello(5); !ok {
		t.Fatal("the worker has ended")
	}
	old := batch(1, 1)
	if err := table.Arrive(old, nil, nil); errs.Of(err) != errs.SchedulerDeposed {
		t.Errorf("taken with %v", err)
	}
	table.Return(old)
	if held, _ := table.Hello(6); len(held.Running) != 0 || started(held, 1) {
		t.Errorf("the hello: %+v", held)
	}
}

// Whatever happens in whatever sequence: a hello names each request that has
// arrived and was not returned, as running or as started, and each change is told
// to a scheduler that knows of the batch and to no other.
func TestHistories(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		history(t, random)
	}
}

func history(t *testing.T, random *rand.Rand) {
	table := batches.New()
	table.Grant(infer.Grant{Instance: slot, Credits: 100})
	known := make(map[infer.BatchID]bool) // by the scheduler of the session
	running := make(map[infer.BatchID]*infer.Batch)
	free := make(map[infer.BatchID][]uint64)
	ended, returned := make(map[uint64]bool), make(map[uint64]bool)
	connected, number, request := false, uint64(0), uint64(0)
	hello := func() {
		if connected {
			table.Disconnect()
			connected = false
		}
		held, _ := table.Hello(3)
		clear(known)
		named := units(held)
		for _, r := range held.Running {
			known[r.Batch] = true
		}
		for n := uint64(1); n <= request; n++ {
			runs := slices.Contains(named, n)
			switch {
			case ended[n] && !started(held, n) && !runs:
				t.Fatalf("request %d has ended, and the hello does not say so", n)
			case !ended[n] && !runs && !returned[n]:
				t.Fatalf("request %d runs, and the hello does not say so", n)
			}
		}
	}
	pick := func(of int) int { return random.IntN(max(of, 1)) }
	check := func(b infer.BatchID, told batches.Telling) {
		if (told == batches.Now) != (connected && known[b]) {
			t.Fatalf("a change of batch %v is told: %v; connected %v, known %v", b, told, connected, known[b])
		}
	}
	hello()
	for range 40 {
		ids := make([]infer.BatchID, 0, len(running))
		for b := range running {
			ids = append(ids, b)
		}
		slices.SortFunc(ids, infer.BatchID.Compare)
		switch random.IntN(6) {
		case 0:
			hello()
		case 1:
			if connected {
				continue
			}
			grants, _, _ := table.Connect(3)
			if want := 100 - len(running); grants[0].Credits != want {
				t.Fatalf("%d credits are granted, want %d", grants[0].Credits, want)
			}
			connected = true
		case 2:
			number++
			b := batch(number)
			for range 1 + pick(3) {
				request++
				b.Requests = append(b.Requests, &infer.Request{Work: work(request)})
			}
			arrive(t, table, b)
			running[b.ID], known[b.ID] = b, true
		case 3:
			if len(ids) == 0 {
				continue
			}
			b := running[ids[pick(len(ids))]]
			delete(running, b.ID)
			f := &infer.InstanceFree{Batch: b.ID, Outcomes: make([]infer.Outcome, len(b.Requests))}
			for i, r := range b.Requests {
				if random.IntN(2) == 0 {
					if f.Ends == nil {
						f.Ends = make([]infer.UnitEnd, len(b.Requests))
					}
					f.Ends[i] = infer.UnitMore
					free[b.ID] = append(free[b.ID], r.Work.Request.Number)
				} else {
					ended[r.Work.Request.Number] = true
				}
			}
			check(b.ID, table.Free(f))
		case 4:
			for b, left := range free {
				n := left[0]
				if free[b] = left[1:]; len(left) == 1 {
					delete(free, b)
				}
				ended[n] = true
				check(b, table.Done(&infer.UnitDone{Batch: b, Work: work(n)}))
				break
			}
		case 5:
			if len(ids) == 0 {
				continue
			}
			b := running[ids[pick(len(ids))]]
			delete(running, b.ID)
			for _, r := range b.Requests {
				returned[r.Work.Request.Number] = true
			}
			if told := table.Return(b); told == batches.Now && (!connected || !known[b.ID]) {
				t.Fatalf("batch %v is returned to a scheduler that does not know it", b.ID)
			}
		}
	}
}

// holder has sequences.
type holder []infer.HeldSequence

func (h holder) Sequences() []infer.HeldSequence { return h }

// A hello names the sequences of instances that the scheduler may use, with the
// names of instance and model.
func TestHelloNamesLiveSequences(t *testing.T) {
	table := batches.New()
	other, away := infer.InstanceID{Worker: 7, Slot: 2}, infer.InstanceID{Worker: 7, Slot: 3}
	chat, number := infer.HeldSequence{Sequence: infer.Sequence{Key: "chat"}, BatchSlot: 2}, infer.HeldSequence{Sequence: infer.Sequence{ID: 5}, BatchSlot: 4}
	for id, h := range map[infer.InstanceID]holder{slot: {chat, number}, other: {chat}, away: {chat}} {
		table.Hold(id, h)
	}
	model := infer.ModelRef{Name: "m", Version: 1}
	for _, id := range []infer.InstanceID{slot, other} {
		table.Grant(infer.Grant{Instance: id, Model: model})
	}
	want := []infer.HeldSequence{
		{Model: model, Instance: slot, Sequence: infer.Sequence{Key: "chat"}, BatchSlot: 2},
		{Model: model, Instance: slot, Sequence: infer.Sequence{ID: 5}, BatchSlot: 4},
		{Model: model, Instance: other, Sequence: infer.Sequence{Key: "chat"}, BatchSlot: 2},
	}
	if diff := cmp.Diff(want, session(t, table).Sequences); diff != "" {
		t.Error(diff)
	}
	table.Hold(slot, nil)
	if diff := cmp.Diff(want[2:], session(t, table).Sequences); diff != "" {
		t.Error(diff)
	}
}

// A hello does not name a sequence whose last request has arrived, though that still
// waits for the instance: the scheduler would give the state to the next sequence
// with this ID. An iterative request that goes on is named until it has ended.
func TestHelloLeavesOutSequencesThatEnd(t *testing.T) {
	table := batches.New()
	ends, other := infer.HeldSequence{Sequence: infer.Sequence{ID: 5}, BatchSlot: 1}, infer.HeldSequence{Sequence: infer.Sequence{ID: 6}, BatchSlot: 2}
	again := infer.HeldSequence{Sequence: infer.Sequence{ID: 7}, BatchSlot: 3, Request: work(9)}
	table.Hold(slot, holder{ends, other, again})
	table.Grant(infer.Grant{Instance: slot, Credits: 1})
	session(t, table)
	b := batch(1, 1, 2, 3)
	b.Slots = []infer.Slot{
		{Index: 1, Sequence: infer.Sequence{ID: 5, End: true}}, {Index: 2, Sequence: infer.Sequence{ID: 6}}, {Index: 3, Sequence: infer.Sequence{ID: 7, End: true}},
	}
	arrive(t, table, b)
	other.Instance, again.Instance = slot, slot
	if diff := cmp.Diff([]infer.HeldSequence{other, again}, session(t, table).Sequences); diff != "" {
		t.Error(diff)
	}
	ends.Instance = slot
	table.Free(&infer.InstanceFree{Batch: b.ID, Instance: slot, Outcomes: make([]infer.Outcome, 3)})
	if diff := cmp.Diff([]infer.HeldSequence{ends, other, again}, session(t, table).Sequences); diff != "" {
		t.Errorf("after the batch, whose entry is used again: %s", diff)
	}
}

// A hello grants what is free of an instance, which is nothing while it is away.
func TestInstancesThatAreAwayAreGrantedWithoutCredits(t *testing.T) {
	table := batches.New()
	for _, step := range []struct{ credits, want int }{{2, 2}, {-2, 0}, {2, 2}} {
		table.Grant(infer.Grant{Instance: slot, Credits: step.credits})
		table.Disconnect()
		table.Hello(3)
		if grants, _, _ := table.Connect(3); len(grants) != 1 || grants[0].Credits != step.want {
			t.Errorf("granted %+v, want %d credits", grants, step.want)
		}
	}
}
