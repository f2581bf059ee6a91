package values

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

const npyMagic = "\x93NUMPY"

// npyTypes are NumPy's names of the protocol's datatypes. BF16 and strings of
// Python objects are none of NumPy's own.
func npyTypes() map[string]tensor.Datatype {
	return map[string]tensor.Datatype{
		"|b1": tensor.Bool, "|i1": tensor.Int8, "|u1": tensor.Uint8,
		"<i2": tensor.Int16, "<i4": tensor.Int32, "<i8": tensor.Int64,
		"<u2": tensor.Uint16, "<u4": tensor.Uint32, "<u8": tensor.Uint64,
		"<f2": tensor.FP16, "<f4": tensor.FP32, "<f8": tensor.FP64,
	}
}

// fromNPY reads an array as numpy.save writes it.
func fromNPY(want client.Description, file []byte) (client.Tensor, error) {
	header, data, err := cutNPY(file)
	if err != nil {
		return client.Tensor{}, err
	}
	descr, shape, err := parseNPY(header)
	if err != nil {
		return client.Tensor{}, err
	}
	elements, ok := shape.Elements()
	if !ok {
		return client.Tensor{}, fmt.Errorf("an array of the shape %s is too large", shape)
	}
	if width, ok := strings.CutPrefix(descr, "|S"); ok && want.Datatype == tensor.Bytes {
		if data, err = fixedStrings(data, width, elements); err != nil {
			return client.Tensor{}, err
		}
		return fitted(want, shape, data)
	}
	d, known := npyTypes()[descr]
	if !known || d != want.Datatype {
		return client.Tensor{}, fmt.Errorf("the array has the dtype %s, and the model takes %s: convert it with astype before it is saved", descr, want.Datatype)
	}
	if size, ok := shape.ByteSize(d); !ok || size != int64(len(data)) {
		return client.Tensor{}, fmt.Errorf("the array has %d bytes, and its shape %s takes %d", len(data), shape, size)
	}
	return fitted(want, shape, data)
}

// cutNPY splits a file into its header and the elements.
func cutNPY(file []byte) (header string, data []byte, err error) {
	rest, ok := bytes.CutPrefix(file, []byte(npyMagic))
	if !ok || len(rest) < 6 {
		return "", nil, errors.New("it is no file of numpy.save")
	}
	n, at := int64(binary.LittleEndian.Uint16(rest[2:])), int64(4)
	if rest[0] > 1 { // format 2 and 3 have longer headers
		n, at = int64(binary.LittleEndian.Uint32(rest[2:])), 6
	}
	if at+n > int64(len(rest)) {
		return "", nil, errors.New("the file ends within its header")
	}
	return string(rest[at : at+n]), rest[at+n:], nil
}

// parseNPY reads the header, which is a Python dictionary in a fixed form.
func parseNPY(header string) (descr string, shape tensor.Shape, err error) {
	form := regexp.MustCompile(`^\{'descr': '([^']+)', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \}\s*$`)
	m := form.FindStringSubmatch(header)
	if m == nil {
		return "", nil, fmt.Errorf("the file's header is not understood: %.100s", header)
	}
	if m[2] == "True" {
		return "", nil, errors.New("the array is in Fortran's order: save numpy.ascontiguousarray of it")
	}
	for part := range strings.SplitSeq(m[3], ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil {
			return "", nil, fmt.Errorf("the array's shape (%s) is too large", m[3])
		}
		shape = append(shape, n)
	}
	return m[1], shape, nil
}

// fixedStrings reads strings of one width, filled up with zero bytes.
func fixedStrings(data []byte, width string, elements int64) ([]byte, error) {
	n, err := strconv.Atoi(width)
	if err != nil || n <= 0 || len(data)%n != 0 || int64(len(data)/n) != elements {
		return nil, fmt.Errorf("the array's %d bytes are not %d strings of %s bytes", len(data), elements, width)
	}
	var out []byte
	for ; len(data) > 0; data = data[n:] {
		out = tensor.AppendBytes(out, bytes.TrimRight(data[:n], "\x00"))
	}
	return out, nil
}
