package perf

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/values"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// dataFile is the JSON that perf_analyzer reads with --input-data. An element of
// data is one request, or a list of the requests of a sequence.
type dataFile struct {
	Data []json.RawMessage `json:"data"`
}

// dataValue is an input of a request other than a flat list.
type dataValue struct {
	Content json.RawMessage `json:"content"`
	Shape   []int64         `json:"shape"`
	Base64  *string         `json:"b64"`
}

// ReadData reads the requests of a JSON file as perf_analyzer has them:
//
//	{"data": [{"INPUT0": [1, 2], "INPUT1": {"content": [3, 4], "shape": [2]}, "IMAGE": {"b64": "..."}}, ...]}
//
// An element that is a list has the requests of one sequence. Shapes do not include
// the batch dimension; a request has rows of it, from as many elements.
func ReadData(text []byte, about *client.Metadata, rows int) ([][]Item, error) {
	var file dataFile
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the data are no JSON with a list \"data\": %v", err)
	}
	if len(file.Data) == 0 {
		return nil, errs.New(errs.ConfigInvalid, "the list \"data\" has no requests")
	}
	var all [][]Item
	for i, element := range file.Data {
		steps := []json.RawMessage{element}
		if bytes.HasPrefix(bytes.TrimSpace(element), []byte("[")) {
			steps = nil
			if err := json.Unmarshal(element, &steps); err != nil {
				return nil, errs.Wrap(errs.ConfigInvalid, err, "data[%d]: %v", i, err)
			}
		}
		var items []Item
		for j, step := range steps {
			item, err := readItem(step, about)
			if err != nil {
				return nil, errs.Wrap(errs.ConfigInvalid, err, "data[%d], request %d: %v", i, j, err)
			}
			items = append(items, item)
		}
		if len(items) > 0 {
			all = append(all, items)
		}
	}
	if rows > 1 {
		return batched(all, rows)
	}
	return all, nil
}

// readItem reads one request with a single row.
func readItem(text []byte, about *client.Metadata) (Item, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return Item{}, fmt.Errorf("want an object of inputs: %w", err)
	}
	var item Item
	for _, d := range about.Inputs {
		raw, ok := fields[d.Name]
		if !ok {
			continue // it may be optional; the server knows
		}
		delete(fields, d.Name)
		t, err := readValue(raw, d)
		if err != nil {
			return Item{}, fmt.Errorf("input %q: %w", d.Name, err)
		}
		item.Inputs = append(item.Inputs, t)
	}
	for name := range fields {
		return Item{}, fmt.Errorf("the model has no input %q", name)
	}
	return item, nil
}

func readValue(raw json.RawMessage, d client.Description) (client.Tensor, error) {
	value := dataValue{Content: raw}
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		value = dataValue{}
		if err := json.Unmarshal(raw, &value); err != nil {
			return client.Tensor{}, err
		}
	}
	if value.Shape != nil {
		stated := tensor.Shape(value.Shape)
		if len(stated) == len(d.Shape)-1 {
			stated = stated.Prepend(1)
		}
		d.Shape = stated
	}
	// Metadata do not say whether an open first dimension is that of the batch.
	row := d
	if len(d.Shape) > 0 && d.Shape[0] < 0 {
		row.Shape = slices.Clone(d.Shape)
		row.Shape[0] = 1
	}
	if value.Base64 != nil {
		data, err := base64.StdEncoding.DecodeString(*value.Base64)
		if err != nil {
			return client.Tensor{}, err
		}
		return fromBase64(data, row)
	}
	t, err := values.JSON(row, value.Content)
	if err != nil {
		if other, second := values.JSON(d, value.Content); second == nil {
			return other, nil
		}
	}
	return t, err
}

// fromBase64 takes the tensor's bytes, or the one element of a BYTES tensor.
func fromBase64(data []byte, d client.Description) (client.Tensor, error) {
	if d.Datatype == tensor.Bytes {
		if n, ok := d.Shape.Elements(); ok && n == 1 {
			return client.Tensor{Description: d, Data: tensor.AppendBytes(nil, string(data))}, nil
		}
		return client.Tensor{Description: d, Data: data}, nil
	}
	n, ok := d.Shape.Elements()
	if !ok || n > math.MaxInt64/8 || n*int64(d.Datatype.Size()) != int64(len(data)) {
		return client.Tensor{}, fmt.Errorf("%d bytes do not fill the shape %s of %s; state \"shape\"", len(data), d.Shape, d.Datatype)
	}
	return client.Tensor{Description: d, Data: data}, nil
}

// batched joins requests of one row: each takes its own row and those that follow.
func batched(all [][]Item, rows int) ([][]Item, error) {
	joined := make([][]Item, len(all))
	for i := range all {
		if len(all[i]) > 1 {
			return nil, errs.New(errs.ConfigInvalid, "data[%d] is a sequence: its requests cannot have %d rows", i, rows)
		}
		var item Item
		for at, t := range all[i][0].Inputs {
			t.Shape = slices.Clone(t.Shape)
			t.Data = slices.Clone(t.Data)
			for row := 1; row < rows; row++ {
				other := all[(i+row)%len(all)][0].Inputs
				if at >= len(other) || other[at].Name != t.Name || len(t.Shape) == 0 || !slices.Equal(other[at].Shape, all[i][0].Inputs[at].Shape) {
					return nil, errs.New(errs.ConfigInvalid, "data[%d] cannot share a request with the next: input %q has another shape", i, t.Name)
				}
				t.Data = append(t.Data, other[at].Data...)
			}
			t.Shape[0] *= int64(rows)
			item.Inputs = append(item.Inputs, t)
		}
		joined[i] = []Item{item}
	}
	return joined, nil
}
