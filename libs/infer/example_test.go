package infer_test

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// A request is finished once: its inputs are released, and a final response with
// its identity goes to the gateway that made it.
func Example() {
	request := &infer.Request{
		Work:      infer.Work{Request: infer.RequestID{Origin: 7, Number: 1}, Attempt: 1},
		Model:     infer.ModelID{Name: "digits"}.Version(3, 1),
		BatchSize: 1,
		Inputs:    []infer.Tensor{{Name: "x", Datatype: tensor.Int8, Shape: tensor.Shape{1, 4}, Data: tensor.InHeap([]byte{1, 2, 3, 4})}},
	}
	fmt.Println(request.Model, request.InputBytes(), request.Wants("y"))

	response := infer.Refuse(request.Work, errs.New(errs.QueueFull, "the queue of %s is full", request.Model.Name))
	request.Release()
	fmt.Println(response.Work.Request, response.Final, response.Err)
	response.Release()
	// Output:
	// digits/3@1 4 true
	// 7-1 true the queue of digits is full
}

func ExampleRecent() {
	var started infer.Recent
	started.Add(infer.RequestID{Origin: 7, Number: 41})
	fmt.Println(started.Lookup(infer.RequestID{Origin: 7, Number: 41}) == infer.Present)
	fmt.Println(started.Lookup(infer.RequestID{Origin: 7, Number: 42}) == infer.Absent)
	// Output:
	// true
	// true
}
