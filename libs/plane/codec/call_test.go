package codec

import (
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// numbered is a message of a call or control, with its number.
type numbered struct {
	Number   uint64
	Call     *infer.Call
	Response *infer.Response
	Control  *Control
	Taken    uint32
	Ready    bool
	Err      error
}

func (n numbered) release() {
	switch {
	case n.Call != nil:
		n.Call.Release()
	case n.Response != nil:
		n.Response.Release()
	case n.Control != nil:
		n.Control.Release()
	}
}

func drawNumber(t *rapid.T) uint64 { return rapid.Uint64().Draw(t, "number") }

func drawCall(t *rapid.T) *infer.Call {
	return callOf(rapid.String().Draw(t, "version"), rapid.Bool().Draw(t, "single"), drawRequest(t))
}

// callOf is the call that the gateway makes of a request of its own.
func callOf(version string, single bool, r *infer.Request) *infer.Call {
	return &infer.Call{
		Model: r.Model.Name, Version: version, Single: single, ID: r.ID, Inputs: r.Inputs, Outputs: r.Outputs, Parameters: r.Parameters,
		Sequence: r.Sequence, Priority: r.Priority, Timeout: r.Timeout, Trace: r.Trace, Parent: r.Parent, Tenant: r.Tenant,
		CostClass: r.CostClass, Deadline: r.Deadline,
	}
}

func callMessage(number uint64, c *infer.Call) *nereidv1.Call {
	d := descriptorMessage(&infer.Request{
		Model: infer.ModelRef{Name: c.Model}, ID: c.ID, Inputs: c.Inputs, Outputs: c.Outputs, Parameters: c.Parameters, Sequence: c.Sequence,
		Priority: c.Priority, Timeout: c.Timeout, Trace: c.Trace, Parent: c.Parent, Tenant: c.Tenant, CostClass: c.CostClass, Deadline: c.Deadline,
	}, now)
	return &nereidv1.Call{Call: number, Version: c.Version, Single: c.Single, Descriptor_: d}
}

// callKinds are the messages by which models call models and control them.
func callKinds() []kind {
	envelope := func() proto.Message { return new(nereidv1.TensorEnvelope) }
	one := func(m proto.Message) *nereidv1.TensorMessage { return m.(*nereidv1.TensorEnvelope).GetMessages()[0] }
	in := func(m *nereidv1.TensorMessage) proto.Message {
		return &nereidv1.TensorEnvelope{Messages: []*nereidv1.TensorMessage{m}}
	}
	return []kind{
		{
			"call", ExchangeCall, envelope,
			func(t *rapid.T) any { return numbered{Number: drawNumber(t), Call: drawCall(t)} },
			func(w *Writer, v any) error { return w.Call(v.(numbered).Number, v.(numbered).Call, now) },
			func(v any) proto.Message {
				return in(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Call{Call: callMessage(v.(numbered).Number, v.(numbered).Call)}})
			},
			func(r *Reader, b Body) (any, error) {
				n, c, err := r.Call(b, now)
				return numbered{Number: n, Call: c}, err
			},
			func(m proto.Message) any {
				c := one(m).GetCall()
				return numbered{Number: c.GetCall(), Call: callOf(c.GetVersion(), c.GetSingle(), requestOf(c.GetDescriptor_(), now))}
			},
		},
		{
			"response to a call", ExchangeCallResponse, envelope,
			func(t *rapid.T) any { return numbered{Number: drawNumber(t), Response: drawResponse(t)} },
			func(w *Writer, v any) error { return w.CallResponse(v.(numbered).Number, v.(numbered).Response) },
			func(v any) proto.Message {
				p, _ := responseMessage(v.(numbered).Response)
				m := &nereidv1.CallResponse{Call: v.(numbered).Number, Response: p}
				return in(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_CallResponse{CallResponse: m}})
			},
			func(r *Reader, b Body) (any, error) {
				n, p, err := r.CallResponse(b)
				return numbered{Number: n, Response: p}, err
			},
			func(m proto.Message) any {
				p, _ := responseOf(one(m).GetCallResponse().GetResponse())
				endWithError(p)
				return numbered{Number: one(m).GetCallResponse().GetCall(), Response: p}
			},
		},
		{
			"what was taken of a call", ExchangeCallTaken, envelope,
			func(t *rapid.T) any { return numbered{Number: drawNumber(t), Taken: rapid.Uint32().Draw(t, "taken")} },
			func(w *Writer, v any) error { return w.CallTaken(v.(numbered).Number, v.(numbered).Taken) },
			func(v any) proto.Message {
				m := &nereidv1.CallTaken{Call: v.(numbered).Number, Responses: v.(numbered).Taken}
				return in(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_CallTaken{CallTaken: m}})
			},
			func(r *Reader, b Body) (any, error) {
				n, taken, err := r.CallTaken(b)
				return numbered{Number: n, Taken: taken}, err
			},
			func(m proto.Message) any {
				return numbered{Number: one(m).GetCallTaken().GetCall(), Taken: one(m).GetCallTaken().GetResponses()}
			},
		},
	}
}

// controlKinds are the messages by which models control models.
func controlKinds() []kind {
	envelope := func() proto.Message { return new(nereidv1.TensorEnvelope) }
	one := func(m proto.Message) *nereidv1.TensorMessage { return m.(*nereidv1.TensorEnvelope).GetMessages()[0] }
	in := func(m *nereidv1.TensorMessage) proto.Message {
		return &nereidv1.TensorEnvelope{Messages: []*nereidv1.TensorMessage{m}}
	}
	return []kind{
		{
			"control", ExchangeControl, envelope,
			func(t *rapid.T) any {
				return numbered{Number: drawNumber(t), Control: &Control{
					Action: nereidv1.ControlAction(rapid.Int32Range(0, 3).Draw(t, "action")), Model: rapid.String().Draw(t, "model"),
					Version: rapid.String().Draw(t, "version"), Config: rapid.String().Draw(t, "config"), Files: drawTensors(t),
					Dependents: rapid.Bool().Draw(t, "dependents"),
				}}
			},
			func(w *Writer, v any) error { return w.Control(v.(numbered).Number, v.(numbered).Control) },
			func(v any) proto.Message {
				c := v.(numbered).Control
				m := &nereidv1.Control{
					Control: v.(numbered).Number, Action: c.Action, Model: c.Model, Version: c.Version, Config: c.Config, Dependents: c.Dependents,
				}
				m.Files, _ = tensors(c.Files)
				return in(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_Control{Control: m}})
			},
			func(r *Reader, b Body) (any, error) {
				n, c, err := r.Control(b)
				return numbered{Number: n, Control: c}, err
			},
			func(m proto.Message) any {
				c := one(m).GetControl()
				return numbered{Number: c.GetControl(), Control: &Control{
					Action: c.GetAction(), Model: c.GetModel(), Version: c.GetVersion(), Config: c.GetConfig(), Files: tensorsOf(c.GetFiles()),
					Dependents: c.GetDependents(),
				}}
			},
		},
		{
			"control is done", ExchangeControlDone, envelope,
			func(t *rapid.T) any {
				n := numbered{Number: drawNumber(t), Ready: rapid.Bool().Draw(t, "ready")}
				if rapid.Bool().Draw(t, "fails") {
					n.Err = drawError(t)
				}
				return n
			},
			func(w *Writer, v any) error {
				return w.ControlDone(v.(numbered).Number, v.(numbered).Ready, v.(numbered).Err)
			},
			func(v any) proto.Message {
				m := &nereidv1.ControlDone{Control: v.(numbered).Number, Ready: v.(numbered).Ready}
				if v.(numbered).Err != nil {
					m.Error = Error(v.(numbered).Err)
				}
				return in(&nereidv1.TensorMessage{Message: &nereidv1.TensorMessage_ControlDone{ControlDone: m}})
			},
			func(r *Reader, b Body) (any, error) {
				n, ready, failure, err := r.ControlDone(b)
				return numbered{Number: n, Ready: ready, Err: failure}, err
			},
			func(m proto.Message) any {
				d := one(m).GetControlDone()
				return numbered{Number: d.GetControl(), Ready: d.GetReady(), Err: ErrorOf(d.GetError())}
			},
		},
	}
}
