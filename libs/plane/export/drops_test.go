package export_test

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// A gateway that was taken for gone and comes back hears when its answers were dropped,
// at each stream. Answers from after that it gets.
func TestGatewayHearsThatItsAnswersWereDropped(t *testing.T) {
	p := newPlane(t, modes()[1])
	p.attach()
	p.at.Respond(&infer.Response{Work: work(1), Final: true})
	before := p.clock.Now()
	p.at.Gone(gatewayEpoch)
	p.at.Respond(&infer.Response{Work: work(2), Final: true})
	after := p.clock.Now()
	for stream := range 2 {
		p.connect()
		select {
		case at := <-p.dropped: // with what the hello took
			if at < before || at.Sub(after) > patience {
				t.Errorf("answers were dropped at %v, want between %v and %v", at, before, after)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the gateway hears of nothing")
		}
		if stream == 0 {
			if r := p.answer(); r.Work != work(2) {
				t.Errorf("the answer to %v has come", r.Work)
			}
		}
		p.stop()
	}
}

// A gateway that has had all its answers has lost none with its lease.
func TestNothingIsDroppedThatWasAcknowledged(t *testing.T) {
	p := newPlane(t, modes()[1])
	p.attach()
	p.connect()
	p.at.Respond(&infer.Response{Work: work(1), Final: true})
	p.answer().Release()
	if u := p.at.Settle(t.Context()); u.Waits() {
		t.Fatalf("%+v is not acknowledged", u)
	}
	p.stop()
	p.at.Gone(gatewayEpoch)
	p.connect()
	p.at.Respond(&infer.Response{Work: work(2), Final: true})
	p.answer().Release()
	p.stop()
	if n := len(p.dropped); n != 0 {
		t.Errorf("the gateway has heard of dropped answers %d times", n)
	}
}

// While the parts of an output come, its request is not given up.
func TestLargeOutputsArriveForAWhile(t *testing.T) {
	p := newPlane(t, modes()[2])
	p.attach()
	p.connect()
	defer p.stop()
	p.at.Respond(&infer.Response{Work: work(1), Final: true})
	p.answer().Release()
	if p.from.Arriving(0, p.clock.Now()) {
		t.Error("something arrives before it was sent")
	}
	before := p.clock.Now()
	type seen struct{ any, of, earlier, other bool }
	during := make(chan seen, 1)
	p.to = responder(func(r *infer.Response) {
		if r.Work == work(3) { // which overtakes the other
			now := p.clock.Now()
			during <- seen{
				p.from.Arriving(0, now), p.from.Arriving(workerEpoch, now), p.from.Arriving(workerEpoch, before), p.from.Arriving(workerEpoch+1, now),
			}
		}
		p.answers <- r
	})
	p.at.Respond(&infer.Response{Work: work(2), Final: true, Outputs: []infer.Tensor{p.worker.tensorOf(t, "y", 16<<20)}})
	p.at.Respond(&infer.Response{Work: work(3), Final: true})
	if got := <-during; got != (seen{any: true, of: true}) {
		t.Errorf("while an output is on its way: %+v", got)
	}
	p.answer().Release()
	p.answer().Release()
	if p.from.Arriving(0, p.clock.Now()) {
		t.Error("something arrives after all has come")
	}
}
