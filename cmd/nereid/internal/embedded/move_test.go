package embedded

import (
	"context"
	"testing"

	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/export"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker"
)

// onOneWorker is a model that takes a moment and runs on one worker.
const onOneWorker = `
backend: "echo"
input { name: "x" data_type: TYPE_INT8 dims: [ 1 ] }
output { name: "y" data_type: TYPE_INT8 dims: [ 1 ] }
instance_group [ { kind: KIND_CPU count: 2 } ]
parameters { key: "execute_us" value { string_value: "500" } }
parameters { key: "placement.replicas" value { string_value: "1" } }
`

// leaver runs a worker that leaves when it is told to stop, and returns when it
// has its lease: one that is told to stop sees then that it is not the only one.
// stop returns when it has ended.
func (d *devices) leaver(id string) (stop func()) {
	d.t.Helper()
	c := worker.Default()
	c.ID, c.DrainTimeout, c.LeaveTimeout = id, patience, patience
	nobody := export.NewEndpoint(export.Config{}).Caller()
	w, err := worker.New(c, worker.Deps{
		Bus: d.bus, Scheduler: d.scheduler, Responder: d, Calls: nobody, Control: nobody, Clock: mono.New(), Pool: tensor.NewPool(0),
	})
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	(&unled{t: d.t}).eventually("the worker "+id+" to know what it should run", w.Ready)
	return func() {
		d.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			d.t.Errorf("%s: %v", id, err)
		}
	}
}

// A model goes from worker to worker, each of which leaves when the next is
// there, while requests come all the time: none fails.
func TestModelMovesUnderLoadWithoutAFailure(t *testing.T) {
	d := startDevices(t, onOneWorker)
	leave := d.leaver("first")
	ref, _ := d.ready("first")
	load, ended := make(chan bool), make(chan uint64)
	go func() { // two requests at a time until load is closed
		var sent, answered uint64
		for more := true; more || answered < sent; {
			if more && sent < answered+2 {
				d.submit(ref, sent)
				sent++
				continue
			}
			if n, err := d.answer(); err != nil {
				t.Errorf("request %d of %d failed: %v", n, sent, err)
			}
			answered++
			select {
			case <-load:
				more = false
			default:
			}
		}
		ended <- sent
	}()
	for _, next := range []string{"second", "third", "fourth"} {
		following := d.leaver(next)
		leave() // which ends when the model is with the next
		leave = following
		if now, _ := d.ready(next); now != ref {
			t.Errorf("%v is on %s, want %v", now, next, ref)
		}
	}
	close(load)
	if sent := <-ended; sent == 0 {
		t.Error("no request was sent")
	}
	leave()
}
