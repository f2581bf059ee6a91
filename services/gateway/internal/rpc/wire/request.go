package wire

import (
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Request is a decoded ModelInferRequest. It owns the bytes of its tensors until [Request.Tensors] hands them
// over; [Request.Reset] releases what it still owns and prepares it for another message. It is not safe for
// concurrent use.
type Request struct {
	Model, Version, ID string
	// Parameters are the request's parameters as sent. Keys may repeat; then the last one wins. A Value is a
	// bool, int64, uint64, float64, string, or nil for none.
	Parameters []infer.Parameter
	Inputs     []Input
	Outputs    []Output

	raws []tensor.Ref // raw_input_contents in order
	text strings.Builder
	dims []int64 // backs the inputs' shapes
	pack tensor.Packer
}

// Input is one input of a request as it was sent.
type Input struct {
	Name     string
	Datatype tensor.Datatype
	Shape    tensor.Shape
	// Parameters are as in [Request].
	Parameters []infer.Parameter
	// Shared says that the data is in client shared memory and not in the message. Whoever reads the parameters
	// sets it before [Request.Tensors].
	Shared bool

	hasContents bool
	// given is the datatype of the typed contents, and size the bytes that they need as a tensor: contents, if
	// they fit the input. Contents of several kinds never fit.
	given    tensor.Datatype
	several  bool
	size     int64
	contents tensor.Ref
}

// HasContents reports whether the input has typed contents.
func (in *Input) HasContents() bool { return in.hasContents }

// Output is an output that a request asks for.
type Output struct {
	Name       string
	Parameters []infer.Parameter
}

// Reset releases what the request still owns and empties it.
func (r *Request) Reset() {
	for i := range r.Inputs {
		r.Inputs[i].contents.Release()
	}
	for i := range r.raws {
		r.raws[i].Release()
	}
	// The texts and dimensions belong to the previous request and are not reused.
	*r = Request{Inputs: emptied(r.Inputs), Outputs: emptied(r.Outputs), Parameters: emptied(r.Parameters), raws: emptied(r.raws)}
}

// keepEntries is how many entries of a kind a request retains memory for.
const keepEntries = 64

// emptied returns an empty list for the next message, reusing the memory of this one unless it is large.
func emptied[T any](list []T) []T {
	if cap(list) > keepEntries {
		return nil
	}
	clear(list)
	return list[:0]
}

// Tensors pairs the inputs with their data and hands both over. Its errors are Triton's, for inputs whose data
// is missing, given twice or of the wrong kind; the request then still owns all data. Inputs in client shared
// memory have no data.
func (r *Request) Tensors() ([]infer.Tensor, error) {
	if err := r.checkData(); err != nil {
		return nil, err
	}
	tensors := make([]infer.Tensor, len(r.Inputs))
	raws := r.raws
	for i := range r.Inputs {
		in := &r.Inputs[i]
		tensors[i] = infer.Tensor{Name: in.Name, Datatype: in.Datatype, Shape: in.Shape}
		if in.Shared {
			continue
		}
		if in.hasContents {
			tensors[i].Data, in.contents = in.contents, tensor.Ref{}
			continue
		}
		tensors[i].Data, raws[0] = raws[0], tensor.Ref{}
		raws = raws[1:]
	}
	return tensors, nil
}

func (r *Request) checkData() error {
	raws := len(r.raws)
	for i := range r.Inputs {
		in := &r.Inputs[i]
		switch {
		case in.Shared:
		case in.hasContents && len(r.raws) > 0:
			return r.refuse(errs.TensorDataInvalid,
				"contents field must not be specified when using raw_input_contents for '%s' for model '%s'", in.Name, r.Model)
		case in.several:
			return r.refuse(errs.TensorDataInvalid,
				"unexpected explicit tensor data for input tensor '%s' for model '%s', binary data was already supplied.", in.Name, r.Model)
		case in.hasContents && in.given != in.Datatype:
			return r.refuse(errs.TensorDataInvalid,
				"unexpected explicit tensor data for input tensor '%s' for model '%s' of type '%s', expected datatype '%s'",
				in.Name, r.Model, in.given, spelled(in.Datatype))
		case in.size > maxContents:
			return r.refuse(errs.InputTooLarge,
				"contents of input '%s' for model '%s' take %d bytes, more than %d: send them in raw_input_contents",
				in.Name, r.Model, in.size, maxContents)
		case in.hasContents:
		case raws == 0:
			return r.refuse(errs.TensorDataInvalid,
				"unable to find data for input tensor '%s' for model '%s' in request.", in.Name, r.Model)
		default:
			raws--
		}
	}
	return nil
}

func (r *Request) refuse(reason errs.Reason, format string, args ...any) error {
	return errs.New(reason, format, args...).WithModel(r.Model)
}

// spelled returns a datatype's name as Triton spells it.
func spelled(d tensor.Datatype) string {
	if !d.Valid() {
		return "<invalid>"
	}
	return d.String()
}
