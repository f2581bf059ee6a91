package codec

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Whatever a client or a model has put into a request or response, it is read as it was
// written, or it is not written and fails alone: a reader that refused it would end the
// stream, with what others have on it.
func TestWhatIsWrittenIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		request, response := drawRequest(t), drawResponse(t)
		tensors, parameters := &request.Inputs, &request.Parameters
		if rapid.Bool().Draw(t, "spoil the response") {
			tensors, parameters = &response.Outputs, &response.Parameters
		}
		spoil(t, tensors, parameters)
		if rapid.Bool().Draw(t, "spoil the texts") {
			request.ID = "\xff"
		}
		for name, message := range map[string]struct {
			write func(w *Writer) error
			read  func(r *Reader, b Body) error
		}{
			"request": {
				func(w *Writer) error { return w.Submit(request, now) },
				func(r *Reader, b Body) error { _, err := r.Submit(b, now); return err },
			},
			"response": {
				func(w *Writer) error { return w.Response(ExchangeResponse, response) },
				func(r *Reader, b Body) error { _, _, err := r.Response(b); return err },
			},
			"call": {
				func(w *Writer) error {
					return w.Call(1, &infer.Call{Model: "m", ID: request.ID, Inputs: request.Inputs, Parameters: request.Parameters}, now)
				},
				func(r *Reader, b Body) error { _, _, err := r.Call(b, now); return err },
			},
			"response to a call": {
				func(w *Writer) error { return w.CallResponse(1, response) },
				func(r *Reader, b Body) error { _, _, err := r.CallResponse(b); return err },
			},
		} {
			w := NewWriter(new(Spares))
			if err := message.write(w); err != nil {
				if !errs.Classified(err) || w.Len() != 0 {
					t.Fatalf("%s: %v, and %d bytes are written", name, err, w.Len())
				}
				continue
			}
			envelope, r := w.Take(), NewReader(tensor.NewPool(0))
			err := r.Each(envelope, func(_ protowire.Number, b Body) error { return message.read(r, b) })
			envelope.Free()
			if err != nil {
				t.Fatalf("%s is written, but not read: %v", name, err)
			}
		}
	})
}

// spoil makes one of the tensors or parameters what a peer would not read.
func spoil(t *rapid.T, tensors *[]infer.Tensor, parameters *[]infer.Parameter) {
	bad := infer.Tensor{Name: "bad", Datatype: tensor.Int32, Shape: tensor.Shape{2}, Data: tensor.InHeap(make([]byte, 8))}
	switch rapid.IntRange(0, 7).Draw(t, "what is wrong") {
	case 0:
		return
	case 1:
		bad.Shape = tensor.Shape{3}
	case 2:
		bad.Shape = tensor.Shape{-1, -2}
	case 3:
		bad.Datatype = tensor.Invalid
	case 4:
		bad.Name = "\xfe"
	case 5:
		bad.Datatype, bad.Shape = tensor.Bytes, tensor.Shape{-2}
	case 6:
		bad.Shape = tensor.Shape{1 << 40, 1 << 40}
	case 7:
		*parameters = append(*parameters, infer.Parameter{Key: "bad", Value: struct{}{}})
		return
	}
	*tensors = append(*tensors, bad)
}
