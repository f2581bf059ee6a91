package export_test

import (
	"errors"
	"io"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/link"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// A stream that comes late, after one that was begun later, brings nothing: what
// it says was taken is no longer true, and answers would come twice.
func TestStreamThatWasOvertakenIsRefused(t *testing.T) {
	p := newPlane(t, modes()[1])
	p.attach()
	p.connect() // the first
	p.stop()
	p.connect() // the second
	defer p.stop()
	p.at.Respond(&infer.Response{Work: work(1), Final: true})
	p.answer().Release()

	late := newRaw(t, p.peer, &nereidv1.TensorHello{Protocol: link.Protocol, Id: "gateway", Epoch: gatewayEpoch, Stream: 1})
	defer late.close()
	late.next(func(m *nereidv1.TensorMessage) bool { return m.GetHello() != nil })
	if _, err := late.stream.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a stream that was overtaken ended with %v, want a refusal", err)
	}
	p.at.Respond(&infer.Response{Work: work(2), Final: true})
	if r := p.answer(); r.Work != work(2) {
		t.Errorf("the answer to %v has come", r.Work)
	} else {
		r.Release()
	}
}
