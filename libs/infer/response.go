package infer

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
	// Immediate says that the response is no result of the model, and so waits
	// for no earlier request where the model preserves ordering: the request
	// has not run, or is not waited for any more.
	Immediate bool
	// Returned is the request itself, with its inputs, where a scheduler
	// refuses it because no instance holds the content that it names: the
	// gateway may have a newer one. It belongs to whoever has the response.
	Returned *Request
	// Turn, where a model's answers keep the order of its requests, lets the
	// next answer go; elsewhere it is nil. See [Response.PassTurn].
	Turn func()
}

// PassTurn lets the answer go that waits for this one, if there is one. Whoever
// may take long to write the response calls it before; Release does so in any
// case.
func (r *Response) PassTurn() {
	if turn := r.Turn; turn != nil {
		r.Turn = nil
		turn()
	}
}

// Release gives up the bytes of all outputs, and a returned request. It is called once, by whoever
// got the response last.
func (r *Response) Release() {
	r.PassTurn()
	for i := range r.Outputs {
		r.Outputs[i].Data.Release()
	}
	if r.Returned != nil {
		r.Returned.Release()
		r.Returned = nil
	}
}

// Fail makes the final response that ends the work w with err.
func Fail(w Work, err error) *Response { return &Response{Work: w, Final: true, Err: err} }

// Refuse makes the final response that ends the work w with err without a
// result of the model: see [Response.Immediate].
func Refuse(w Work, err error) *Response {
	return &Response{Work: w, Final: true, Err: err, Immediate: true}
}

// Responder takes responses on behalf of the gateway that made the request.
// Respond takes over the response and does not block. Calls for one request
// come one after another; those for different requests come from any
// goroutine.
type Responder interface {
	Respond(*Response)
}
