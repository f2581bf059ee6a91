package modelconfig_test

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// A configuration is read, filled in and checked; serving code works with the
// immutable view of it.
func Example() {
	config, err := modelconfig.Load([]byte(`
		backend: "onnxruntime"
		max_batch_size: 8
		input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
		output { name: "y" data_type: TYPE_FP32 dims: 1 }
		dynamic_batching { max_queue_delay_microseconds: 500 }
	`), modelconfig.Directory{Name: "digits"})
	if err != nil {
		fmt.Println(err)
		return
	}
	view, err := modelconfig.FromProto(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(view.Name, view.Filename, view.Batching.PreferredSizes, view.Groups[0].CountOn(modelconfig.KindCPU))
	fmt.Println(view.ClientShape(view.Input("x")))
	// Output:
	// digits model.onnx [8] 2
	// [-1,-1,4]
}

// Every problem is reported, with its place and what to do.
func ExampleProblemsOf() {
	_, err := modelconfig.Load([]byte(`backend: "onnxruntime"
max_batchsize: 8
input { name: "x" data_type: FP32 dims: -2 }
output { name: "y" data_type: TYPE_FP32 dims: 1 }
`), modelconfig.Directory{Name: "digits", File: "digits/config.pbtxt"})
	for _, p := range modelconfig.ProblemsOf(err) {
		fmt.Println(p)
	}
	// Output:
	// digits/config.pbtxt:2:1: unknown field "max_batchsize": did you mean max_batch_size?
	// digits/config.pbtxt:3:30: unknown value "FP32" of input[0].data_type: did you mean TYPE_FP32?
	// digits/config.pbtxt:3:35: model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for digits: give its size, or -1 if it varies
}
