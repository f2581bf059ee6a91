package schedule_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// keeper is a backend that keeps what is handed back.
type keeper struct {
	*backend
	back chan *infer.Batch
}

func (keeper) UnitDone(infer.UnitDone)          {}
func (k keeper) Return(o *infer.Batch, _ error) { k.back <- o }

// A refused order comes back without the requests that the worker has answered,
// whose inputs are released.
func TestRefusalHandsBackWhatWasNotAnswered(t *testing.T) {
	s, peers := serve(t)
	k, ex := keeper{newBackend(3), make(chan *infer.Batch, 1)}, newExecutor()
	s.Serve(3, k)
	_, w := dialBoth(t, peers["unix"], newEvents(), ex)
	<-k.attached // which is after the worker's session has begun
	pool := tensor.NewPool(1 << 20)
	o := &infer.Batch{ID: infer.BatchID{Epoch: 3, Number: 1}, Instance: instance}
	for n := range uint64(2) {
		b, err := pool.Get(1024)
		if err != nil {
			t.Fatal(err)
		}
		r := request(n)
		r.Inputs = []infer.Tensor{{Name: "x", Datatype: tensor.Uint8, Shape: tensor.Shape{1024}, Data: tensor.InBuffer(b, 0, 1024)}}
		o.Requests, o.Enqueued = append(o.Requests, r), append(o.Enqueued, mono.Time(1))
	}
	k.executor.Execute(o)
	arrived := <-ex.orders
	arrived.Requests[0].Release()
	both := pool.Stats().InUse
	w.Return(&infer.Batch{ID: infer.BatchID{Epoch: 3, Number: 1}, Instance: instance, Requests: arrived.Requests[1:]}, errs.New(errs.NoWorker, ""))
	back := <-k.back
	if len(back.Requests) != 1 || back.Requests[0].Work.Request.Number != 1 || pool.Stats().InUse*2 != both {
		t.Errorf("handed back %+v; of %d bytes %d are in use", back, both, pool.Stats().InUse)
	}
	back.Requests[0].Release()
	if n := pool.Stats().InUse; n != 0 {
		t.Errorf("%d bytes are not given back", n)
	}
}
