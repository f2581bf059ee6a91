package core

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
)

// sequenceIdle is how long the sequences of a cluster may be idle.
const sequenceIdle = 20 * time.Second

// TestNothingRunsOnAStateThatLacksARequest has the same histories with sequences:
// each request runs once, on the state that has all those that its client had sent
// before, whoever led then.
func TestNothingRunsOnAStateThatLacksARequest(t *testing.T) {
	for name, rules := range map[string]clusterRules{
		"no lost answers": {sequences: true},
		"lost answers":    {sequences: true, loses: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adopted := 0
			for n := range uint64(*histories) {
				c := newCluster(*seed+n, rules)
				if err := c.run(); err != nil {
					t.Fatalf("history of seed %d: %v", *seed+n, err)
				}
				adopted += c.adopted
			}
			if adopted < *histories/50 {
				t.Errorf("in %d histories %d requests ran on a state of an earlier leadership", *histories, adopted)
			}
		})
	}
}

// A worker does not name a sequence whose last request it has got. If it did, the next
// scheduler would take the state for that of a later sequence with the same ID, whose
// worker reports too late. Few histories come to it; this one does.
func TestWorkersDoNotNameSequencesThatEnd(t *testing.T) {
	const seed, text = 42282, "on a state that has"
	if err := newCluster(seed, clusterRules{sequences: true}).run(); err != nil {
		t.Errorf("history of seed %d: %v", seed, err)
	}
	if err := newCluster(seed, clusterRules{sequences: true, namesEnding: true}).run(); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("without the rule: %v, want a request that runs %s none", err, text)
	}
}

// Each rule taken out, they find what it prevents.
func TestSequenceHistoriesFindWhatTheRulesPrevent(t *testing.T) {
	for name, c := range map[string]struct {
		rules clusterRules
		text  string
	}{
		"the record of who may have got batches":     {clusterRules{sequences: true, loses: true, unrecorded: true}, "runs twice"},
		"requests come again in their order":         {clusterRules{sequences: true, loses: true, disordered: true}, "on a state that has"},
		"what follows on a failed one does not come": {clusterRules{sequences: true, loses: true, forgetful: true}, "on a state that has"},
	} {
		t.Run(name, func(t *testing.T) { mustFind(t, c.rules, c.text) })
	}
}

// clusterSequence is a sequence of a client, from START to END. The client sends on
// without waiting for answers. When it hears that one has failed it begins anew,
// under another ID: where a worker and the scheduler die together, another worker may
// have a state from before the failure, and nobody knows that it is not the last.
type clusterSequence struct {
	id     uint64
	sent   []uint64 // requests
	failed bool     // as the client knows
	ended  bool
}

// nodeState is the state of a sequence on a worker.
type nodeState struct {
	id      uint64
	of      *clusterSequence
	applied []uint64
	epoch   uint64 // of the scheduler under which it began
	until   mono.Time
	ending  bool // the request with END has arrived
}

// next gives a request its place in the sequence of some client.
func (c *cluster) next(r *clusterRequest) {
	client := uint64(1 + c.IntN(8))
	s := c.clients[client]
	start := s == nil || s.failed || s.ended || c.IntN(20) == 0
	if start {
		next := &clusterSequence{id: client}
		if s != nil {
			next.id = s.id
		}
		if s != nil && s.failed {
			next.id += 8
		}
		s = next
		c.clients[client] = s
	}
	s.ended = c.IntN(6) == 0
	s.sent = append(s.sent, c.gateway.last)
	r.of, r.place = s, infer.Sequence{ID: s.id, Start: start, End: s.ended}
}

// failed is when a client hears that a request has failed. Its gateway does not submit
// again what follows in the sequence.
func (c *cluster) failed(number uint64) {
	s := c.gateway.requests[number].of
	if s == nil {
		return
	}
	s.failed = true
	for _, later := range s.sent {
		if later > number && !c.rules.forgetful {
			c.gateway.requests[later].broken = true
		}
	}
}

// cancel has a client give up a request.
func (c *cluster) cancel() {
	g := &c.gateway
	if g.last == 0 {
		return
	}
	number := 1 + c.Uint64N(g.last)
	r := g.requests[number]
	if r.answered {
		return
	}
	r.answered = true
	c.failed(number)
	if g.to != nil && g.brokenAt == 0 {
		c.step(g.to, &Event{Kind: Cancel, Unit: infer.Unit{Request: infer.RequestID{Origin: 1, Number: number}}})
	}
}

// apply runs a request on the state in its slot.
func (c *cluster) apply(st *stream, number uint64, slot *infer.Slot) {
	w, r := st.from, c.gateway.requests[number]
	if slot.Sequence.ID != r.place.ID || slot.Sequence.Start != r.place.Start || slot.Sequence.End != r.place.End {
		c.fail("request %d of %+v runs as %+v", number, r.place, slot.Sequence)
	}
	if slot.Sequence.Start {
		w.states[slot.Index] = &nodeState{id: r.place.ID, of: r.of, epoch: st.to.epoch}
	}
	state := w.states[slot.Index]
	if state == nil || state.of != r.of || !slices.Equal(state.applied, r.of.sent[:slices.Index(r.of.sent, number)]) {
		c.fail("request %d of the sequence %v runs in slot %d of worker %d on a state that has %+v", number, r.of.sent, slot.Index, w.id, state)
		return
	}
	state.ending = state.ending || slot.Sequence.End
	state.until = c.now.Add(sequenceIdle) // which begins anew when the request has run
	if state.applied = append(state.applied, number); state.epoch != st.to.epoch {
		c.adopted++
	}
}

// held is what a worker says of its states: it names the sequences that go on.
func (c *cluster) held(w *node) (list []infer.HeldSequence) {
	for _, slot := range slices.Sorted(maps.Keys(w.states)) {
		state := w.states[slot]
		if state.ending && !c.rules.namesEnding {
			continue
		}
		list = append(list, infer.HeldSequence{
			Model: poolModel, Sequence: infer.Sequence{ID: state.id}, Instance: infer.InstanceID{Worker: w.id}, BatchSlot: slot,
			Idle: max(state.until.Sub(c.now), 0),
		})
	}
	return list
}
