// Package values converts JSON, NumPy files, images and text to tensors that a
// model takes, and tensors to readable text.
package values

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// maxFile bounds a file that is read as an input, in bytes.
const maxFile = 1 << 30

// Read makes the input that want describes of text: the path of a file, whose
// ending says what it is, or JSON.
//
//   - .json, or no file: a number, string, or nested list of them
//   - .npy: a NumPy array of the model's datatype
//   - .png: an image, scaled to the model's height and width; integers get 0
//     to 255, floats 0 to 1, and BYTES the file as it is
//   - .txt: for BYTES, an element for each line; for UINT8 the text's bytes
//   - .bin: the tensor's bytes as the protocol has them
//
// The value takes the model's shape where its own leaves no doubt: leading
// dimensions of 1 are added, and a list that fills the shape is cut into it.
func Read(want client.Description, text string) (client.Tensor, error) {
	t, err := read(want, text)
	if err != nil {
		return t, fmt.Errorf("input %s=%.80s: %w", want.Name, text, err)
	}
	return t, nil
}

func read(want client.Description, text string) (client.Tensor, error) {
	info, err := os.Stat(text)
	if err != nil || info.IsDir() {
		if !json.Valid([]byte(text)) {
			return client.Tensor{}, fmt.Errorf("there is no such file, and it is no JSON either, such as 1, \"text\" or [1, 2]")
		}
		return fromJSON(want, []byte(text))
	}
	if info.Size() > maxFile {
		return client.Tensor{}, fmt.Errorf("the file has %d bytes, more than %d", info.Size(), maxFile)
	}
	data, err := os.ReadFile(text)
	if err != nil {
		return client.Tensor{}, err
	}
	return fromFile(want, data, strings.ToLower(filepath.Ext(text)))
}

func fromFile(want client.Description, data []byte, ending string) (client.Tensor, error) {
	switch ending {
	case ".json":
		return fromJSON(want, data)
	case ".npy":
		return fromNPY(want, data)
	case ".png":
		return fromPNG(want, data)
	case ".txt":
		return fromText(want, data)
	case ".bin":
		return fromBytes(want, data)
	}
	return client.Tensor{}, fmt.Errorf("a file must end in .json, .npy, .png, .txt or .bin, which says how to read it")
}

func fromText(want client.Description, data []byte) (client.Tensor, error) {
	if want.Datatype == tensor.Uint8 {
		return fitted(want, tensor.Shape{int64(len(data))}, data)
	}
	if want.Datatype != tensor.Bytes {
		return client.Tensor{}, fmt.Errorf("a text file is for BYTES and UINT8, and the model takes %s: write the numbers as JSON", want.Datatype)
	}
	var elements []byte
	count := int64(0)
	for line := range strings.Lines(string(data)) {
		elements = tensor.AppendBytes(elements, strings.TrimRight(line, "\r\n"))
		count++
	}
	return fitted(want, tensor.Shape{count}, elements)
}

func fromBytes(want client.Description, data []byte) (client.Tensor, error) {
	if want.Datatype == tensor.Bytes {
		count, err := tensor.CountBytes(data, math.MaxInt64)
		if err != nil {
			return client.Tensor{}, err
		}
		return fitted(want, tensor.Shape{count}, data)
	}
	size := want.Datatype.Size()
	if len(data)%size != 0 {
		return client.Tensor{}, fmt.Errorf("%d bytes are no whole number of %s elements", len(data), want.Datatype)
	}
	return fitted(want, tensor.Shape{int64(len(data) / size)}, data)
}

// fitted makes a tensor of elements that have the given shape of their own.
func fitted(want client.Description, own tensor.Shape, data []byte) (client.Tensor, error) {
	shape, ok := fit(want.Shape, own)
	if !ok {
		return client.Tensor{}, fmt.Errorf("it has the shape %s, and the model takes %s", own, want.Shape)
	}
	want.Shape = shape
	return client.Tensor{Description: want, Data: data}, nil
}

// fit gives a value of the shape own a shape that pattern admits.
func fit(pattern, own tensor.Shape) (tensor.Shape, bool) {
	padded := own
	for len(padded) < len(pattern) {
		padded = padded.Prepend(1)
	}
	if pattern.Admits(padded) {
		return padded, true
	}
	elements, ok := own.Elements()
	if !ok {
		return nil, false
	}
	return solve(pattern, elements)
}

// solve fills in the one dimension of pattern that elements leave open.
func solve(pattern tensor.Shape, elements int64) (tensor.Shape, bool) {
	shape, open, known := append(tensor.Shape{}, pattern...), -1, int64(1)
	for i, d := range pattern {
		switch {
		case d >= 0:
			known *= d
		case open >= 0:
			return nil, false
		default:
			open = i
		}
	}
	if open < 0 {
		return shape, known == elements
	}
	if known == 0 || elements%known != 0 {
		return nil, false
	}
	shape[open] = elements / known
	return shape, true
}
