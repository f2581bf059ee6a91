package core

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// client sends requests of one tenant in virtual time.
type client struct {
	tenant   string
	share    infer.Share
	model    int
	every    time.Duration // between requests, on average; 0 is as many as there is room for, at the start
	backlog  int           // how many wait at all times
	deadline time.Duration

	served, late, refused, sent int
	waits                       []time.Duration
}

// device runs batches of models in virtual time: each takes base and row for each of
// its rows.
type device struct {
	t         *testing.T
	core      *Core
	now       mono.Time
	clients   []*client
	base, row time.Duration
	models    int
	by        map[uint64]*client // of requests, by number
	running   []*running
	number    uint64
	random    *rand.Rand
	next      []mono.Time // of each client
}

type running struct {
	batch *Batch
	done  mono.Time
}

func newDevice(t *testing.T, config Config, models int, batch int64, clients ...*client) *device {
	t.Helper()
	d := &device{
		t: t, core: New(config), now: mono.Time(time.Second), clients: clients, base: time.Millisecond, row: time.Millisecond, models: models,
		by: make(map[uint64]*client), random: rand.New(rand.NewPCG(1, 2)), next: make([]mono.Time, len(clients)),
	}
	d.step(&Event{Kind: BecomeLeader, Epoch: 1})
	d.step(&Event{Kind: WorkerConnected, Instance: infer.InstanceID{Worker: 1}, Held: &infer.Held{}})
	for m := range models {
		d.step(&Event{Kind: Configure, Model: &Model{Ref: d.ref(m), Config: &modelconfig.Config{MaxBatchSize: batch, Batching: &modelconfig.DynamicBatching{}}}})
		id := infer.InstanceID{Worker: 1, Slot: uint32(m)}
		d.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: id, Model: d.ref(m), Credits: 1, Device: "gpu:0"}})
	}
	return d
}

func (d *device) ref(m int) infer.ModelRef {
	return infer.ModelRef{Name: fmt.Sprint("m", m), Version: 1}
}

func (d *device) step(e *Event) {
	record := uint64(0)
	for _, n := range d.core.Step(d.now, e) {
		switch n.Kind {
		case Dispatch:
			b := n.Members()
			d.running = append(d.running, &running{b, d.now.Add(d.base + time.Duration(b.Size)*d.row)})
			for _, it := range b.Items {
				c := d.by[it.Work.Request.Number]
				c.waits = append(c.waits, d.now.Sub(it.Enqueued))
			}
		case Refuse:
			d.by[n.Unit.Request.Number].refused++
		case Record:
			record = uint64(n.A)
		}
	}
	if record != 0 {
		d.step(&Event{Kind: Recorded, Version: record})
	}
}

func (d *device) submit(c *client) {
	d.number++
	c.sent++
	d.by[d.number] = c
	it := &Item{
		Request: &infer.Request{Tenant: c.tenant, Share: c.share}, Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: d.number}, Attempt: 1},
		Model: d.ref(c.model), BatchSize: 1, Enqueued: d.now,
	}
	if c.deadline > 0 {
		it.Deadline = d.now.Add(c.deadline)
	}
	d.step(&Event{Kind: Submit, Item: it})
}

// run runs for so long.
func (d *device) run(long time.Duration) {
	for end := d.now.Add(long); d.now < end; {
		at := end
		for i, c := range d.clients {
			if c.every > 0 {
				if d.next[i] == 0 {
					d.next[i] = d.now.Add(d.gap(c))
				}
				at = min(at, d.next[i])
			}
			for c.backlog > 0 && c.sent-c.served-c.refused < c.backlog {
				d.submit(c)
			}
		}
		first := slices.MinFunc(append(d.running, &running{done: math.MaxInt64}), func(a, b *running) int { return int(a.done - b.done) })
		at = min(at, first.done)
		if wake := d.core.NextWake(); wake != 0 {
			at = min(at, max(wake, d.now))
		}
		d.now = max(at, d.now)
		if first.done <= d.now {
			d.finish(first)
			continue
		}
		for i, c := range d.clients {
			if c.every > 0 && d.next[i] <= d.now {
				d.next[i] = d.now.Add(d.gap(c))
				d.submit(c)
			}
		}
		d.step(&Event{Kind: Tick})
	}
}

func (d *device) gap(c *client) time.Duration {
	return time.Duration(d.random.ExpFloat64() * float64(c.every))
}

func (d *device) finish(r *running) {
	d.running = slices.DeleteFunc(d.running, func(o *running) bool { return o == r })
	took := d.base + time.Duration(r.batch.Size)*d.row
	for _, it := range r.batch.Items {
		c := d.by[it.Work.Request.Number]
		c.served++
		if it.Deadline != 0 && d.now > it.Deadline {
			c.late++
		}
	}
	d.step(&Event{Kind: InstanceFree, Ended: &infer.InstanceFree{
		Batch: r.batch.ID, Instance: r.batch.Instance, Credits: 1, Executions: 1, Outcomes: make([]infer.Outcome, len(r.batch.Items)),
		Timing: infer.Timing{Start: d.now.Add(-took), Done: d.now},
	}})
}

func weight(w float64) infer.Share { return infer.Share{Band: 1, Weight: uint32(1000 * w)} }

// shareError is how far the clients' parts of what was served are from those of their
// weights, at most, relative to these.
func shareError(clients []*client) (worst float64) {
	total, weights := 0.0, 0.0
	for _, c := range clients {
		total, weights = total+float64(c.served), weights+float64(c.share.Weight)
	}
	for _, c := range clients {
		want := float64(c.share.Weight) / weights
		worst = max(worst, math.Abs(float64(c.served)/total-want)/want)
	}
	return worst
}

func TestTenantsShareADeviceByTheirWeights(t *testing.T) {
	for _, tt := range []struct {
		name    string
		models  int
		batch   int64
		config  Config
		timeout time.Duration
	}{
		{"of one model", 1, 1, Config{}, 0},
		{"of one model in batches", 1, 16, Config{}, 0},
		{"of four models on one device", 4, 4, Config{DeviceBatches: 1}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var clients []*client
			for i := range 8 {
				clients = append(clients, &client{tenant: fmt.Sprint("t", i), share: weight(float64(i + 1)), model: i % tt.models, backlog: 100})
			}
			d := newDevice(t, tt.config, tt.models, tt.batch, clients...)
			d.run(60 * time.Second)
			if worst := shareError(clients); worst > 0.05 {
				for _, c := range clients {
					t.Logf("%s: %d", c.tenant, c.served)
				}
				t.Errorf("a tenant's share is off by %.1f%%", 100*worst)
			}
		})
	}
}

func TestATenantBeyondItsShareLeavesOthersTheirs(t *testing.T) {
	goodput := func(flood bool) float64 {
		// The device serves 500/s one by one; each of two tenants may have 250/s.
		modest := &client{tenant: "modest", share: weight(1), every: 5 * time.Millisecond, deadline: 100 * time.Millisecond}
		greedy := &client{tenant: "greedy", share: weight(1), every: 400 * time.Microsecond, deadline: 100 * time.Millisecond}
		clients := []*client{modest}
		if flood {
			clients = append(clients, greedy)
		}
		newDevice(t, Config{MaxRequests: 1000}, 1, 1, clients...).run(60 * time.Second)
		return float64(modest.served-modest.late) / float64(modest.sent)
	}
	alone, beside := goodput(false), goodput(true)
	t.Logf("goodput of a tenant within its share: %.4f alone, %.4f beside a flood", alone, beside)
	if beside < 0.97*alone {
		t.Errorf("goodput of a tenant within its share: %.4f alone, %.4f beside a flood", alone, beside)
	}
}

func TestBandsGoInTheirOrderButForTheirMinimum(t *testing.T) {
	high := &client{tenant: "a", share: infer.Share{Band: 1, Weight: 1000}, backlog: 50}
	low := &client{tenant: "b", share: infer.Share{Band: 2, Minimum: 100, Weight: 1000}, backlog: 50}
	none := &client{tenant: "c", share: infer.Share{Band: 3, Weight: 1000}, backlog: 50}
	newDevice(t, Config{}, 1, 1, high, low, none).run(60 * time.Second)
	if part := float64(low.served) / float64(low.served+high.served); part < 0.095 || part > 0.105 || none.served != 0 {
		t.Errorf("a band with a minimum of 10%% has had %.3f, the one without %d requests", part, none.served)
	}
}

func TestHighBandsWaitForNoMoreThanWhatRuns(t *testing.T) {
	high := &client{tenant: "a", share: infer.Share{Band: 1, Weight: 1000}, every: 50 * time.Millisecond}
	low := &client{tenant: "b", share: infer.Share{Band: 2, Weight: 1000}, backlog: 50}
	newDevice(t, Config{}, 1, 4, high, low).run(60 * time.Second)
	if longest := slices.Max(high.waits); longest > 12*time.Millisecond { // two batches of 5 ms, where two came close together
		t.Errorf("a request of the highest band has waited for %v", longest)
	}
	if low.served == 0 {
		t.Error("the low band got nothing though there was time")
	}
}

func TestLowBandsFillBatches(t *testing.T) {
	high := &client{tenant: "a", share: infer.Share{Band: 1, Weight: 1000}, backlog: 1}
	low := &client{tenant: "b", share: infer.Share{Band: 2, Weight: 1000}, backlog: 50}
	newDevice(t, Config{}, 1, 8, high, low).run(time.Second)
	if high.served == 0 || low.served < 6*high.served {
		t.Errorf("%d of the high band and %d of the low one, in batches of 8", high.served, low.served)
	}
}

func TestTenantsRequestsGoByTheirDeadlines(t *testing.T) {
	d := newDevice(t, Config{}, 1, 1)
	c := &client{tenant: "a", share: weight(1)}
	var order []uint64
	for _, ms := range []int{0, 500, 300, 0, 100, 400} {
		c.deadline = time.Duration(ms) * time.Millisecond
		d.submit(c)
	}
	for len(d.running) > 0 {
		r := d.running[0]
		order = append(order, r.batch.Items[0].Work.Request.Number)
		d.now = r.done
		d.finish(r)
	}
	if want := []uint64{1, 5, 3, 6, 2, 4}; !slices.Equal(order, want) { // the first ran when the others came
		t.Errorf("they ran as %v, want %v", order, want)
	}
}

func TestFullQueuesRefuseThoseWhoFillThem(t *testing.T) {
	greedy := &client{tenant: "greedy", share: weight(1)}
	modest := &client{tenant: "modest", share: weight(1)}
	urgent := &client{tenant: "urgent", share: infer.Share{Band: 1, Weight: 1000}}
	batch := &client{tenant: "batch", share: infer.Share{Band: 2, Weight: 1000}}
	for name, tt := range map[string]struct {
		config Config
		queue  uint32
		reason errs.Reason
	}{
		"of the pool":  {Config{MaxRequests: 10}, 0, errs.QueueFull},
		"of the model": {Config{}, 10, errs.MaxQueueSize},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, tt.config, 0, 1)
			config := &modelconfig.Config{MaxBatchSize: 1, Batching: &modelconfig.DynamicBatching{DefaultPolicy: modelconfig.QueuePolicy{MaxQueueSize: tt.queue}}}
			d.step(&Event{Kind: Configure, Model: &Model{Ref: d.ref(0), Config: config}})
			d.step(&Event{Kind: Granted, Grant: &infer.Grant{Instance: infer.InstanceID{Worker: 1}, Model: d.ref(0), Credits: 1, Device: "cpu"}})
			for _, c := range []*client{greedy, modest, urgent, batch} {
				c.refused, c.sent = 0, 0
			}
			for range 11 { // one runs
				d.submit(greedy)
			}
			for range 5 {
				d.submit(modest)
			}
			if greedy.refused != 5 || modest.refused != 0 {
				t.Errorf("%d of the flood and %d of the other were refused", greedy.refused, modest.refused)
			}
			d.submit(modest)
			if modest.refused != 1 {
				t.Errorf("%d were refused of a tenant that has its half", modest.refused)
			}
			d.submit(batch)
			if batch.refused != 1 {
				t.Error("a request of a lower band has displaced one of a higher")
			}
		})
	}
}

func TestTenantsThatComeBackHaveSavedUpNothing(t *testing.T) {
	first := &client{tenant: "first", share: weight(1), backlog: 20}
	d := newDevice(t, Config{}, 1, 1, first)
	d.run(10 * time.Second)
	before := first.served
	late := &client{tenant: "late", share: weight(1), backlog: 20}
	d.clients, d.next = append(d.clients, late), append(d.next, 0)
	d.run(10 * time.Second)
	if a, b := first.served-before, late.served; math.Abs(float64(a-b)) > 0.02*float64(a+b) {
		t.Errorf("after one came late they got %d and %d", a, b)
	}
}
