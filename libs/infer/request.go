package infer

import (
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Tensor is a named tensor and the reference to its bytes.
type Tensor struct {
	Name     string
	Datatype tensor.Datatype
	// Shape is the client's shape on requests and the client-visible shape
	// on responses, with the batch dimension first where the model batches.
	Shape tensor.Shape
	Data  tensor.Ref
}

// Output is a requested output.
type Output struct {
	Name string
}

// Parameter is one custom parameter of a request or response.
type Parameter struct {
	Key string
	// Value is a bool, int64, float64 or string.
	Value any
}

// Sequence places a request in a sequence. The zero value is no sequence.
type Sequence struct {
	// ID is the correlation ID if it is a number; Key if it is a string.
	ID         uint64
	Key        string
	Start, End bool
}

// CorrelationID writes the correlation ID for messages.
func (s *Sequence) CorrelationID() string {
	if s.Key != "" {
		return s.Key
	}
	return strconv.FormatUint(s.ID, 10)
}

// Request is one inference request, decoded and checked against its model's
// metadata. Once it is submitted, only its owner changes it.
type Request struct {
	Work Work
	// ID is the client's own id, or empty.
	ID    string
	Model ModelRef
	// AnyVersion says that the client named no version: Model has the latest one, and another
	// may respond if that one is unloaded. It is not sent to other processes.
	AnyVersion bool
	// Pool names the pool whose scheduler takes the request, as the registry
	// decided for the model.
	Pool string
	// BatchSize is the size of the batch dimension; 1 for a model without one.
	// It may be 0.
	BatchSize int64
	Inputs    []Tensor
	// Outputs are the outputs asked for; empty means all.
	Outputs    []Output
	Parameters []Parameter
	Sequence   Sequence
	// Priority is the client's priority level, 1 the highest; 0 asks for the
	// model's default.
	Priority uint64
	// Timeout is the client's queue timeout; 0 is none.
	Timeout time.Duration
	// Deadline is the time after which the client no longer reads the response; 0 is never.
	Deadline mono.Time
	Tenant   string
	// CostClass is the class that a policy gave the request, or empty.
	CostClass string
	// Share is the request's priority and weight under the policy.
	Share Share
	// Trace is the W3C traceparent, or empty.
	Trace string
	// Parent is the batch that waits for the request, if a model made it.
	Parent Parent
	// KeepOutputs asks the worker to retain large outputs, which steps of an ensemble read
	// next: see [Response.Kept].
	KeepOutputs bool
	// Received is when the request entered the gateway.
	Received mono.Time
}

// Share is a request's priority and weight under a policy. The zero value is that of a request
// without a policy. It travels with the request, so that a scheduler needs no policy of its
// own.
type Share struct {
	// Band is the request's priority band, 1 the highest; 0 is none.
	Band uint32
	// Minimum is the guaranteed share of device time of the band, in thousandths.
	Minimum uint32
	// Weight is the weight of the request's tenant among the tenants of its band, in
	// thousandths.
	Weight uint32
}

// Release releases the bytes of all inputs. The owner that finishes the request calls it once.
func (r *Request) Release() {
	for i := range r.Inputs {
		r.Inputs[i].Data.Release()
	}
}

// LocalBytes returns the sum of the sizes of those tensors that are in this process, in
// bytes: they travel with the message that they belong to.
func LocalBytes(tensors []Tensor) (n int64) {
	for i := range tensors {
		if data := &tensors[i].Data; data.Place == tensor.Local {
			n += data.Length
		}
	}
	return n
}

// InputBytes returns the sum of the inputs' sizes in bytes.
func (r *Request) InputBytes() int64 {
	var n int64
	for i := range r.Inputs {
		n += r.Inputs[i].Data.Length
	}
	return n
}

// MaxDescriptorBytes is the most that [Request.DescriptorBytes] may be. A gateway
// refuses more, since these bytes wait in the scheduler's queue and travel in one
// message with those of others.
const MaxDescriptorBytes = 1 << 20

// About what an input, a requested output and a parameter take in memory beside their
// texts and shapes, in bytes: thousands with short names count, too. Both ends of a
// stream count alike, so they are the same in every build.
const (
	inputBytes     = 128
	outputBytes    = 16
	parameterBytes = 48
)

// DescriptorBytes returns how many bytes the request holds beside the data of its
// inputs: the texts and shapes that its client chose, and what lists them.
func (r *Request) DescriptorBytes() int64 {
	n := len(r.ID) + len(r.Sequence.Key) + len(r.Tenant) + len(r.CostClass) + len(r.Trace)
	n += len(r.Inputs)*inputBytes + len(r.Outputs)*outputBytes + len(r.Parameters)*parameterBytes
	for i := range r.Inputs {
		n += len(r.Inputs[i].Name) + 8*len(r.Inputs[i].Shape)
	}
	for i := range r.Outputs {
		n += len(r.Outputs[i].Name)
	}
	for i := range r.Parameters {
		n += len(r.Parameters[i].Key)
		if text, ok := r.Parameters[i].Value.(string); ok {
			n += len(text)
		}
	}
	return int64(n)
}

// Wants reports whether the named output is requested.
func (r *Request) Wants(output string) bool {
	if len(r.Outputs) == 0 {
		return true
	}
	for i := range r.Outputs {
		if r.Outputs[i].Name == output {
			return true
		}
	}
	return false
}
