package infer

import "time"

// Response is one response to a request. Most models give one; decoupled
// models give any number, the last of which is Final and may be empty.
type Response struct {
	Work Work
	// Index counts the responses of a request from 0.
	Index uint32
	// Final marks the last response. Exactly one is sent for each request.
	Final   bool
	Outputs []Tensor
	// Parameters are response parameters set by the model.
	Parameters []Parameter
	// Err refuses or fails the request. It implies Final and no outputs.
	Err error
	// Immediate says that the response is not a result of the model, and so waits for no
	// earlier request if the model preserves ordering: the request has not run, or its client
	// has disconnected.
	Immediate bool
	// Abandoned says that the gateway itself ended the failed request: its cost, and whether it
	// ran, are unknown.
	Abandoned bool
	// Returned is the request itself, with its inputs, where a scheduler
	// refuses it because no instance holds the content that it names: the
	// gateway may have a newer one. The response's owner owns it.
	Returned *Request
	// Execution describes the execution that gave a final response; zero if there was none.
	Execution Execution
	// OnRelease is called once, when the response is released: its client has received it and
	// earlier ones, or never will. If the response goes to another process, it is called when
	// it was released there. It does not block and makes no callbacks. It may be nil.
	OnRelease func()
	// Awaited says of a response that is not final, and travels, that the worker which
	// gave it is told when it is released.
	Awaited bool
	// Keep asks to retain the large outputs of a response to another process in this one, where
	// their readers fetch them.
	Keep bool
	// Kept says of a response from another process that some of its outputs stay there,
	// with place Remote, until it is released. The number is that process's; 0 is none.
	Kept uint64
}

// Execution has the times of a request at its worker.
type Execution struct {
	Batch    BatchID
	Instance InstanceID
	// BatchSize is that of the execution, in which other requests may have had a part.
	BatchSize int64
	// Waited is the time from the request's arrival at the scheduler until its instance
	// took up its batch, Input until its inputs were there and Ran until its last response.
	Waited, Input, Ran time.Duration
	// Output is the end of Ran, after the model's run: until the outputs were handed over.
	Output time.Duration
	// Cost is the request's part of the time that the instance took for the batch, by
	// batch sizes.
	Cost time.Duration
}

// Release releases the bytes of all outputs, and a returned request, and calls
// OnRelease. The last owner of the response calls it once.
func (r *Response) Release() {
	for i := range r.Outputs {
		r.Outputs[i].Data.Release()
	}
	if r.Returned != nil {
		r.Returned.Release()
		r.Returned = nil
	}
	if released := r.OnRelease; released != nil {
		r.OnRelease = nil
		released()
	}
}

// OutputBytes returns the sum of the outputs' sizes in bytes.
func (r *Response) OutputBytes() int64 {
	var n int64
	for i := range r.Outputs {
		n += r.Outputs[i].Data.Length
	}
	return n
}

// Fail returns the final response that ends the work w with err.
func Fail(w Work, err error) *Response { return &Response{Work: w, Final: true, Err: err} }

// Refuse returns the final response that ends the work w with err without a result of the
// model: see [Response.Immediate].
func Refuse(w Work, err error) *Response {
	return &Response{Work: w, Final: true, Err: err, Immediate: true}
}

// Responder accepts responses for the gateway that made the request. Respond takes ownership of
// the response and does not block. Calls for one request come one after another; those for
// different requests come from any goroutine.
type Responder interface {
	Respond(*Response)
}
