// Package datafile reads tensors from files of a model's directories, such as
// warmup and initial_state. It reads only regular files below the directory, and
// checks their sizes first.
package datafile

import (
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// lengthBytes is the size of the length in front of each element of BYTES.
const lengthBytes = 4

// Size is the size of a tensor in bytes; that of strings if all are empty.
func Size(d tensor.Datatype, dims tensor.Shape) (int64, error) {
	n, ok := dims.Elements()
	each := int64(d.Size())
	if d == tensor.Bytes {
		each = lengthBytes
	}
	if !ok || each == 0 || n > math.MaxInt64/each {
		return 0, fmt.Errorf("%s%s is not the shape of a tensor", d, dims)
	}
	return n * each, nil
}

// File is a file that holds one tensor.
type File struct {
	// What asks for it, such as "warmup", for errors.
	What string
	// Dir is the directory, which is not left, by links either; Name the file's path
	// below it.
	Dir, Name string
	Datatype  tensor.Datatype
	Dims      tensor.Shape
	// Limit bounds the bytes of a file of strings, whose tensor does not tell them.
	Limit int64
}

// Read returns the tensor's bytes: the first of the file or, of strings, all.
func (f File) Read() ([]byte, error) {
	size, err := Size(f.Datatype, f.Dims)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(f.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	file, err := root.OpenFile(f.Name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not hold up the load
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("'%s' is not a regular file", file.Name())
	case info.Size() < size:
		return nil, fmt.Errorf("%s setting expects %d bytes, but the data provided from %s only has %d bytes", f.What, size, f.Name, info.Size())
	case info.Size() > f.Limit && f.Datatype == tensor.Bytes:
		return nil, fmt.Errorf("'%s' has %d bytes, more than the %d that are left for it", file.Name(), info.Size(), f.Limit)
	}
	if f.Datatype == tensor.Bytes {
		size = info.Size()
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(file, data); err != nil {
		return nil, fmt.Errorf("read %s: %w", file.Name(), err)
	}
	return data, f.checkStrings(data)
}

// checkStrings checks that the bytes of a BYTES tensor are its elements.
func (f File) checkStrings(data []byte) error {
	if f.Datatype != tensor.Bytes {
		return nil
	}
	want, _ := f.Dims.Elements()
	if n, err := tensor.CountBytes(data, want); err != nil || n != want {
		return fmt.Errorf("'%s' does not hold %d strings, each after its length in 4 bytes", f.Name, want)
	}
	return nil
}
