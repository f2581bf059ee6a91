package codec

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// What a reader would refuse, with its stream, is not written: it fails alone.
func TestMessagesOfTooManyEntriesAreNotWritten(t *testing.T) {
	work := infer.Work{Request: infer.RequestID{Origin: 1, Number: 1}}
	for _, n := range []int{maxEntries, maxEntries + 1} {
		for name, write := range map[string]func(w *Writer) error{
			"a request": func(w *Writer) error {
				return w.Submit(&infer.Request{Work: work, Parameters: make([]infer.Parameter, n)}, 0)
			},
			"parameters of a response": func(w *Writer) error {
				return w.Response(ExchangeResponse, &infer.Response{Work: work, Parameters: make([]infer.Parameter, n)})
			},
			"outputs of a response": func(w *Writer) error {
				outputs := make([]infer.Tensor, n)
				for i := range outputs {
					outputs[i] = infer.Tensor{Datatype: tensor.Uint8, Shape: tensor.Shape{0}}
				}
				return w.Response(ExchangeResponse, &infer.Response{Work: work, Outputs: outputs})
			},
		} {
			w := NewWriter(new(Spares))
			err := write(w)
			if n <= maxEntries {
				if err != nil {
					t.Errorf("%s of %d entries: %v", name, n, err)
				}
				continue
			}
			if errs.Of(err) != errs.TransferFailed || w.Len() != 0 {
				t.Errorf("%s of %d entries: %v, and %d bytes are written", name, n, err, w.Len())
			}
		}
	}
}

// A batch may have many requests of many parameters each.
func TestBatchesOfManyParameters(t *testing.T) {
	const requests, parameters = 16, maxEntries / 8
	b := &infer.Batch{ID: infer.BatchID{Epoch: 1, Number: 1}}
	for n := range uint64(requests) {
		r := &infer.Request{Work: infer.Work{Request: infer.RequestID{Origin: 1, Number: n}}}
		for range parameters {
			r.Parameters = append(r.Parameters, infer.Parameter{Key: "p", Value: true})
		}
		b.Requests, b.Enqueued = append(b.Requests, r), append(b.Enqueued, 0)
	}
	w := NewWriter(new(Spares))
	if err := w.Batch(b, 0); err != nil {
		t.Fatal(err)
	}
	envelope := w.Take()
	defer envelope.Free()
	r := NewReader(tensor.NewPool(0))
	read := 0
	err := r.Each(envelope, func(_ protowire.Number, body Body) error {
		got, err := r.Batch(body, 0)
		if err == nil {
			read = len(got.Requests)
		}
		return err
	})
	if err != nil || read != requests {
		t.Errorf("%d requests read, %v", read, err)
	}
}

// Errors that travel in a message of their own have texts that it can carry.
func TestTextsOfErrorsAreMadeValid(t *testing.T) {
	m := Error(errs.Wrap(errs.InstanceCrashed, errors.New("\xfe"), "\xff said").WithModel("\xfd"))
	if _, err := proto.Marshal(m); err != nil {
		t.Error(err)
	}
}
