package perf

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/client"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Class is a part of the requests: those of one model and one caller.
type Class struct {
	// Model and Version are whose requests these are; an empty version is the default one.
	Model, Version string
	// Caller names the caller in reports; Header identifies it to the server.
	Caller string
	Header http.Header
	// Share is the class's weight among all.
	Share float64
	// Items are the data of its requests, which are sent in turn. Where the model
	// keeps sequences each element is a sequence with its requests in order;
	// elsewhere each has one.
	Items [][]Item
	// Outputs are the names of the model's, and OutputSize the bytes that each may have in shared
	// memory. Elsewhere they are not used.
	Outputs    []string
	OutputSize int64
	// Sequences says that the requests of an element carry a correlation id.
	Sequences bool
}

// Item is the data of one request.
type Item struct {
	Inputs []client.Tensor

	placed *inference.ModelInferRequest // whose tensors are in shared memory; nil where they are not
}

// message is the item's request.
func (i *Item) message(c *Class) *inference.ModelInferRequest {
	if i.placed != nil {
		return i.placed
	}
	return (&client.Request{Model: c.Model, Version: c.Version, Inputs: i.Inputs}).GRPC()
}

// payload is a request in the form in which it is sent. All but the parameters of
// a sequence is encoded once, before the load starts.
type payload struct {
	// http is a whole request of HTTP/1.1, without a sequence.
	http []byte
	// grpc is an encoded ModelInferRequest. Protobuf allows fields to follow.
	grpc []byte
	// The parts of an HTTP request between which parameters are written.
	head, json, tensors []byte
}

// sequenceStep is the place of a request in its sequence.
type sequenceStep struct {
	id         uint64
	start, end bool
}

// encode prepares a request of a class for the protocol.
func encode(t *Target, c *Class, m *inference.ModelInferRequest, timeout time.Duration) (*payload, error) {
	if t.Protocol != HTTP {
		data, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encode a request for model %q: %w", c.Model, err)
		}
		return &payload{grpc: data}, nil
	}
	path, body, header, err := client.EncodeHTTP(m)
	if err != nil {
		return nil, err
	}
	// The parameters, which end the JSON, stay open for those of a sequence.
	p := &payload{head: httpHead(t.Address, path, c, timeout), json: body[:header-len("}}")], tensors: body[header:]}
	p.http = p.appendHTTP(nil, nil)
	return p, nil
}

// httpHead is the head of a class's requests but for their lengths.
func httpHead(host, path string, c *Class, timeout time.Duration) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: nereid-perf\r\nContent-Type: application/octet-stream\r\n", path, host)
	if timeout > 0 {
		fmt.Fprintf(&b, "X-Request-Timeout: %s\r\n", timeout)
	}
	for name, values := range c.Header {
		for _, value := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, value)
		}
	}
	return []byte(b.String())
}

// appendHTTP appends the whole request, with the parameters of a step.
func (p *payload) appendHTTP(b []byte, step *sequenceStep) []byte {
	var sequence []byte
	if step != nil {
		sequence = fmt.Appendf(nil, `,"sequence_id":%d,"sequence_start":%t,"sequence_end":%t`, step.id, step.start, step.end)
	}
	length := len(p.json) + len(sequence) + len("}}")
	b = append(b, p.head...)
	b = append(b, "Inference-Header-Content-Length: "...)
	b = strconv.AppendInt(b, int64(length), 10)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(length+len(p.tensors)), 10)
	b = append(b, "\r\n\r\n"...)
	b = append(b, p.json...)
	b = append(b, sequence...)
	b = append(b, "}}"...)
	return append(b, p.tensors...)
}

// Fields of the messages of the inference protocol.
const (
	fieldParameters = 4 // of ModelInferRequest: map<string, InferParameter>
	fieldBool       = 1 // of InferParameter
	fieldInt64      = 2
	fieldKey        = 1 // of an entry of a map
	fieldValue      = 2
)

// appendSequence appends the parameters of a step to an encoded ModelInferRequest.
func appendSequence(b []byte, step *sequenceStep) []byte {
	b = appendParameter(b, "sequence_id", fieldInt64, step.id)
	b = appendParameter(b, "sequence_start", fieldBool, protowire.EncodeBool(step.start))
	return appendParameter(b, "sequence_end", fieldBool, protowire.EncodeBool(step.end))
}

func appendParameter(b []byte, name string, field protowire.Number, value uint64) []byte {
	entry := protowire.AppendString(protowire.AppendTag(nil, fieldKey, protowire.BytesType), name)
	parameter := protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), value)
	entry = protowire.AppendBytes(protowire.AppendTag(entry, fieldValue, protowire.BytesType), parameter)
	return protowire.AppendBytes(protowire.AppendTag(b, fieldParameters, protowire.BytesType), entry)
}
