package values

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxDepth bounds how deep lists may be nested.
const maxDepth = 32

// fromJSON reads nested lists, whose form is the value's shape. A string alone
// is also the bytes of a text for UINT8.
func fromJSON(want client.Description, data []byte) (client.Tensor, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var root any
	if err := decoder.Decode(&root); err != nil {
		return client.Tensor{}, fmt.Errorf("read JSON: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return client.Tensor{}, fmt.Errorf("read JSON: there is more after the value")
	}
	if text, ok := root.(string); ok && want.Datatype == tensor.Uint8 {
		return fitted(want, tensor.Shape{int64(len(text))}, []byte(text))
	}
	l := lists{datatype: want.Datatype}
	if err := l.add(root, 0); err != nil {
		return client.Tensor{}, err
	}
	return fitted(want, l.shape, l.data)
}

// lists gathers the elements of nested lists.
type lists struct {
	datatype tensor.Datatype
	shape    tensor.Shape
	data     []byte
	// leaves is how deep elements are; 0 before the first, which is depth+1.
	leaves int
}

func (l *lists) add(value any, depth int) error {
	list, ok := value.([]any)
	if !ok {
		return l.element(value, depth)
	}
	if depth == maxDepth {
		return fmt.Errorf("lists are nested deeper than %d", maxDepth)
	}
	if depth == len(l.shape) {
		if l.leaves != 0 {
			return fmt.Errorf("a list stands where an element was expected")
		}
		l.shape = append(l.shape, int64(len(list)))
	}
	if int64(len(list)) != l.shape[depth] {
		return fmt.Errorf("lists of one depth have %d and %d elements", l.shape[depth], len(list))
	}
	for _, v := range list {
		if err := l.add(v, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (l *lists) element(value any, depth int) (err error) {
	if l.leaves == 0 {
		l.leaves = depth + 1
	}
	if l.leaves != depth+1 || depth != len(l.shape) {
		return fmt.Errorf("an element stands where a list was expected")
	}
	switch v := value.(type) {
	case string:
		if l.datatype == tensor.Bytes {
			l.data = tensor.AppendBytes(l.data, v)
			return nil
		}
	case bool:
		if l.datatype == tensor.Bool {
			l.data = append(l.data, map[bool]byte{true: 1}[v])
			return nil
		}
	case json.Number:
		if l.datatype != tensor.Bytes {
			l.data, err = appendNumber(l.data, l.datatype, v.String())
			return err
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return fmt.Errorf("%.40s is no %s", text, l.datatype)
}

// appendNumber appends a number in the layout of its datatype. A number that
// the datatype cannot hold is an error.
func appendNumber(data []byte, d tensor.Datatype, text string) ([]byte, error) {
	bits := d.Size() * 8
	var raw uint64
	var err error
	switch kindOf(d) {
	case signed:
		var n int64
		n, err = strconv.ParseInt(text, 10, bits)
		raw = uint64(n)
	case unsigned:
		raw, err = strconv.ParseUint(text, 10, bits)
	case boolean:
		raw, err = strconv.ParseUint(text, 10, 1)
	default:
		var f float64
		f, err = strconv.ParseFloat(text, max(bits, 32))
		raw = floatBits(d, f)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is no %s", text, d)
	}
	return appendRaw(data, raw, d.Size()), nil
}

// JSON makes the input that want describes of JSON, as [Read] does.
func JSON(want client.Description, data []byte) (client.Tensor, error) { return fromJSON(want, data) }
