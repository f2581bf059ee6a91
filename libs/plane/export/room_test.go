package export_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// reader is a worker's view of who reads the responses to requests.
type reader struct {
	mu   sync.Mutex
	told []uint32      // the responses whose release was told, in order; guarded by mu
	news chan struct{} // has room for one signal
}

func newReader() *reader { return &reader{news: make(chan struct{}, 1)} }

// response is one that is awaited.
func (d *reader) response(number uint64, index uint32) *infer.Response {
	return &infer.Response{Work: work(number), Index: index, OnRelease: func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.told = append(d.told, index)
		select {
		case d.news <- struct{}{}:
		default:
		}
	}}
}

func (d *reader) have() []uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.told)
}

// wait returns when the releases of these responses were told.
func (d *reader) wait(t *testing.T, want ...uint32) {
	t.Helper()
	for late := time.After(patience); ; {
		have := d.have()
		if slices.Equal(have, want) {
			return
		}
		if len(have) >= len(want) {
			t.Fatalf("told of %v, want %v", have, want)
		}
		select {
		case <-d.news:
		case <-late:
			t.Fatalf("told of %v, want %v", have, want)
		}
	}
}

// rooms plays with a plane on which a worker has given three responses to request 1,
// each of which is awaited and none released.
func rooms(t *testing.T, play func(t *testing.T, p *plane, d *reader, given []*infer.Response)) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p, d := newPlane(t, m), newReader()
			p.at.Introduce(workerEpoch)
			p.connect()
			t.Cleanup(func() { p.stop() })
			var given []*infer.Response
			for i := range uint32(3) {
				p.at.Respond(d.response(1, i))
				given = append(given, p.answer())
			}
			if told := d.have(); len(told) > 0 {
				t.Errorf("told of %v, which the gateway has taken and its client not", told)
			}
			play(t, p, d, given)
		})
	}
}

func TestReleasesAtTheGatewayAreTold(t *testing.T) {
	rooms(t, func(t *testing.T, p *plane, d *reader, given []*infer.Response) {
		given[0].Release()
		d.wait(t, 0)
		given[2].Release() // and so those before it
		d.wait(t, 0, 1, 2)
		given[1].Release()
		p.at.Respond(&infer.Response{Work: work(1), Index: 3, Final: true})
		p.answer().Release()
		d.wait(t, 0, 1, 2)
	})
}

// The last response ends the waiting: nobody has to read for the worker any more.
func TestNothingIsAwaitedAfterTheEnd(t *testing.T) {
	rooms(t, func(t *testing.T, p *plane, d *reader, given []*infer.Response) {
		p.at.Respond(&infer.Response{Work: work(1), Index: 3, Final: true})
		d.wait(t, 0, 1, 2)
		p.answer().Release()
		for _, r := range given {
			r.Release()
		}
		d.wait(t, 0, 1, 2)
	})
}

// What is released while there is no stream is told on the next, and so is what was
// told before and may have been lost.
func TestReleasesBetweenStreamsAreTold(t *testing.T) {
	rooms(t, func(t *testing.T, p *plane, d *reader, given []*infer.Response) {
		given[0].Release()
		d.wait(t, 0)
		p.stop()
		given[1].Release()
		p.at.Respond(d.response(1, 3))
		d.wait(t, 0)
		p.connect()
		d.wait(t, 0, 1)
		given[2].Release()
		p.answer().Release()
		d.wait(t, 0, 1, 2, 3)
	})
}

// A gateway that is gone reads nothing.
func TestNothingIsAwaitedOfAGatewayThatIsGone(t *testing.T) {
	rooms(t, func(t *testing.T, p *plane, d *reader, given []*infer.Response) {
		p.stop()
		p.at.Gone(gatewayEpoch)
		d.wait(t, 0, 1, 2)
		for _, r := range given {
			r.Release()
		}
	})
}

// A response that the gateway cannot take ends its request there, and is read by
// nobody. The stream goes on.
func TestResponsesThatFailOnTheirWayAreNotAwaited(t *testing.T) {
	for name, spoil := range map[string]func(*infer.Response){
		"a text that is none": func(r *infer.Response) { r.Parameters = []infer.Parameter{{Key: "\xff", Value: true}} },
		"an output of other bytes than its shape": func(r *infer.Response) {
			r.Outputs = []infer.Tensor{{Name: "y", Datatype: tensor.Int32, Shape: tensor.Shape{2}, Data: tensor.InHeap(make([]byte, 4))}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			rooms(t, func(t *testing.T, p *plane, d *reader, given []*infer.Response) {
				for _, r := range given {
					r.Release()
				}
				d.wait(t, 0, 1, 2)
				broken := d.response(1, 3)
				spoil(broken)
				p.at.Respond(broken)
				a := p.answer()
				defer a.Release()
				if errs.Of(a.Err) != errs.TransferFailed || !a.Final {
					t.Errorf("answered by %+v", a)
				}
				d.wait(t, 0, 1, 2, 3)
			})
		})
	}
}
