package export_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// takesNothing begins a stream of the gateway that gives no credit, so that what
// is answered waits there. The returned function has the worker end it.
func (p *plane) takesNothing(number uint64) (end func()) {
	p.t.Helper()
	hello := &nereidv1.TensorHello{Protocol: link.Protocol, Id: "gateway", Epoch: gatewayEpoch, Stream: number}
	r := newRaw(p.t, p.peer, hello)
	r.next(func(m *nereidv1.TensorMessage) bool { return m.GetCredit() != nil }) // which comes once the stream is the gateway's
	return func() {
		r.send(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Hello{Hello: hello}}) // a second one is malformed
		for err := error(nil); err == nil; _, err = r.stream.Recv() {
		}
		r.close()
	}
}

// A gateway that was cut off from the store alone and holds its lease again
// loses no answer with its stream.
func TestAnswersOutliveTheStreamWhenTheLeaseIsBack(t *testing.T) {
	p := newPlane(t, modes()[1])
	p.attach()
	end := p.takesNothing(1)
	p.at.Respond(&infer.Response{Work: work(1), Final: true})
	p.at.Gone(gatewayEpoch)
	p.at.Back(gatewayEpoch)
	end()
	p.connect() // as the first, which was overtaken
	p.stop()
	p.connect()
	defer p.stop()
	if r := p.answer(); r.Work != work(1) {
		t.Errorf("the answer to %v has come", r.Work)
	} else {
		r.Release()
	}
}
