package record

import (
	"hash/maphash"
	"math"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/recording"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	calls "github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// encodeRequest encodes the part for a request. A redacted one contains neither contents nor texts that its
// client chose, except the names of its inputs and outputs.
func (s *session) encodeRequest(c *calls.Call, redacted bool, number uint64, offset time.Duration) ([]byte, error) {
	q := c.Request
	r := &nereidv1.RecordedRequest{
		Number: number, OffsetNs: int64(offset), Protocol: c.Protocol(), Redacted: redacted, InputBytes: q.InputBytes(), BatchSize: q.BatchSize,
		Band: q.Share.Band, BandMinimum: q.Share.Minimum, TenantWeight: q.Share.Weight,
	}
	if c.Tenant != nil {
		r.Tenant = c.Tenant.Name
	}
	if q.Deadline != 0 {
		r.DeadlineNs = int64(q.Deadline.Sub(q.Received))
	}
	m := &inference.ModelInferRequest{ModelName: c.Model, ModelVersion: c.Version, Parameters: s.parameters(c, redacted)}
	if !redacted {
		m.Id = q.ID
	}
	for i := range q.Inputs {
		in := &q.Inputs[i]
		m.Inputs = append(m.Inputs, &inference.ModelInferRequest_InferInputTensor{Name: in.Name, Datatype: in.Datatype.String(), Shape: in.Shape})
		if redacted {
			continue
		}
		data, err := in.Data.Bytes()
		if err != nil {
			return nil, err
		}
		m.RawInputContents = append(m.RawInputContents, data)
	}
	for i := range q.Outputs {
		m.Outputs = append(m.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: q.Outputs[i].Name})
	}
	for _, asked := range c.Classes {
		for _, out := range m.GetOutputs() {
			if out.GetName() == asked.Name {
				out.Parameters = map[string]*inference.InferParameter{"classification": integer(int64(min(asked.Classes, math.MaxInt64)))} //nolint:gosec // bounded
			}
		}
	}
	return recording.AppendRequest(nil, r, m)
}

// parameters returns the request's parameters, including those that the gateway has removed from it.
func (s *session) parameters(c *calls.Call, redacted bool) map[string]*inference.InferParameter {
	q, all := c.Request, make(map[string]*inference.InferParameter)
	for _, p := range q.Parameters {
		switch v := p.Value.(type) {
		case bool:
			all[p.Key] = boolean(v)
		case int64:
			all[p.Key] = integer(v)
		case float64:
			all[p.Key] = &inference.InferParameter{ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: v}}
		case string:
			if !redacted {
				all[p.Key] = text(v)
			}
		}
	}
	if of := &q.Sequence; *of != (infer.Sequence{}) {
		all["sequence_start"], all["sequence_end"] = boolean(of.Start), boolean(of.End)
		switch {
		case of.Key == "":
			all["sequence_id"] = integer(int64(of.ID)) //nolint:gosec // as clients send it
		case redacted: // requests of one sequence still share an id
			all["sequence_id"] = integer(int64(maphash.String(s.seed, of.Key) >> 1)) //nolint:gosec // 63 bits
		default:
			all["sequence_id"] = text(of.Key)
		}
	}
	if q.Priority != 0 {
		all["priority"] = integer(int64(q.Priority)) //nolint:gosec // as clients send it
	}
	if q.Timeout != 0 {
		all["timeout"] = integer(q.Timeout.Microseconds())
	}
	if c.EmptyFinal {
		all["triton_enable_empty_final_response"] = boolean(true)
	}
	return all
}

func boolean(v bool) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: v}}
}

func integer(v int64) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: v}}
}

func text(v string) *inference.InferParameter {
	return &inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: v}}
}

// encodeResponse encodes a ModelInferResponse.
func encodeResponse(c *calls.Call, r *infer.Response) ([]byte, error) {
	ref := c.Served().Ref
	m := wire.Response{Model: ref.Name, Version: strconv.FormatInt(ref.Version, 10), ID: c.ID, Parameters: r.Parameters, Outputs: r.Outputs}
	n, err := m.Size()
	if err != nil {
		return nil, err
	}
	message, _ := m.Append(make([]byte, 0, n), math.MaxInt64)
	return message, nil
}
