package tensor_test

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// A buffer starts with one reference, which a Ref takes over; the memory goes back
// to its pool with the last one.
func Example() {
	pool := tensor.NewPool(1 << 20)
	shape := tensor.Shape{2, 3, 8192}
	size, _ := shape.ByteSize(tensor.FP32)
	buffer, err := pool.Get(int(size))
	if err != nil {
		fmt.Println(err)
		return
	}
	ref := tensor.InBuffer(buffer, 0, size)
	reader := ref.Retain()
	ref.Release()
	data, _ := reader.Bytes()
	fmt.Println(shape, len(data), reader.Mapped(), pool.Stats().InUse)
	reader.Release()
	fmt.Println(pool.Stats().InUse)
	// Output:
	// [2,3,8192] 196608 true 196608
	// 0
}

func ExampleShape_Admits() {
	pattern := tensor.Shape{-1, 16}
	fmt.Println(pattern.Admits(tensor.Shape{4, 16}), pattern.Admits(tensor.Shape{4, 17}))
	// Output: true false
}

// The elements of a BYTES tensor stand one behind the other, each with its length.
func ExampleCutBytes() {
	data := tensor.AppendBytes(tensor.AppendBytes(nil, "cat"), "dog")
	for len(data) > 0 {
		var element []byte
		var err error
		if element, data, err = tensor.CutBytes(data); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(string(element))
	}
	// Output:
	// cat
	// dog
}
