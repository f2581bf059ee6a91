package rpc

import (
	"math"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// sequenceIDKey is the correlation ID of a request of a sequence.
const sequenceIDKey = "sequence_id"

// reservedPrefix begins keys that only Triton's own parameters may have.
const reservedPrefix = "triton_"

// emptyFinalKey asks for the end of a decoupled model's responses as a
// message of its own.
const emptyFinalKey = reservedPrefix + "enable_empty_final_response"

// setParameters puts a request's parameters where they belong. A key that
// repeats counts as the last one says.
func setParameters(list []infer.Parameter, r *infer.Request, emptyFinal *bool) error {
	if len(list) == 0 {
		return nil
	}
	at := make(map[string]int) // of the custom ones, in r.Parameters
	for _, p := range list {
		if err := setParameter(p, r, emptyFinal, at); err != nil {
			return err
		}
	}
	return nil
}

func setParameter(p infer.Parameter, r *infer.Request, emptyFinal *bool, at map[string]int) error {
	switch p.Key {
	case sequenceIDKey:
		return setSequenceID(p, &r.Sequence)
	case "sequence_start":
		return setBool(p, &r.Sequence.Start)
	case "sequence_end":
		return setBool(p, &r.Sequence.End)
	case "priority":
		return setPriority(p, r)
	case "timeout":
		return setTimeout(p, r)
	case emptyFinalKey:
		return setBool(p, emptyFinal)
	}
	return setCustom(p, r, at)
}

func setSequenceID(p infer.Parameter, s *infer.Sequence) error {
	switch v := p.Value.(type) {
	case int64:
		s.ID, s.Key = uint64(v), ""
	case string:
		s.ID, s.Key = 0, v
	default:
		return wrongType(p.Key, "int64_param or string_param")
	}
	return nil
}

func setBool(p infer.Parameter, to *bool) error {
	v, ok := p.Value.(bool)
	if !ok {
		return wrongType(p.Key, "bool_param")
	}
	*to = v
	return nil
}

func setPriority(p infer.Parameter, r *infer.Request) error {
	switch v := p.Value.(type) {
	case int64:
		if v < 0 {
			return errs.New(errs.InvalidParameter, "invalid value for 'priority', expected value >= 0.")
		}
		r.Priority = uint64(v)
	case uint64:
		r.Priority = v
	default:
		return wrongType(p.Key, "int64_param or uint64_param")
	}
	return nil
}

// maxTimeout is the longest timeout in microseconds: half of all time, so that
// it can be added to the present.
const maxTimeout = math.MaxInt64 / 2 / int64(time.Microsecond)

// setTimeout reads the queue timeout in microseconds. A negative one is none:
// to Triton it is a time so long that no queue policy takes it.
func setTimeout(p infer.Parameter, r *infer.Request) error {
	v, ok := p.Value.(int64)
	if !ok {
		return wrongType(p.Key, "int64_param")
	}
	r.Timeout = time.Duration(min(max(v, 0), maxTimeout)) * time.Microsecond
	return nil
}

func setCustom(p infer.Parameter, r *infer.Request, at map[string]int) error {
	if strings.HasPrefix(p.Key, reservedPrefix) {
		return errs.New(errs.InvalidParameter, "parameter keys starting with 'triton_' are reserved for Triton usage. "+
			"Only the following keys starting with 'triton_' are allowed: %s", emptyFinalKey)
	}
	switch p.Value.(type) {
	case bool, int64, float64, string:
	default:
		return wrongType(p.Key, "int64_param, bool_param, or string_param")
	}
	if i, ok := at[p.Key]; ok {
		r.Parameters[i] = p
		return nil
	}
	at[p.Key] = len(r.Parameters)
	r.Parameters = append(r.Parameters, p)
	return nil
}

func wrongType(key, want string) error {
	return errs.New(errs.InvalidParameter, "invalid value type for '%s' parameter, expected %s.", key, want)
}

// checkInput refuses inputs whose data lies in client shared memory, of which
// this server has no region.
func checkInput(in *wire.Input) error {
	for _, p := range in.Parameters {
		if p.Key == regionKey {
			return unknownRegion(p)
		}
	}
	return nil
}

// regionKey names a region of client shared memory.
const regionKey = "shared_memory_region"

func unknownRegion(p infer.Parameter) error {
	name, ok := p.Value.(string)
	if !ok {
		return wrongType(p.Key, "string_param")
	}
	return errs.New(errs.RegionNotFound, "Unable to find shared memory region: '%s'", name)
}

// readOutput returns how many classes of an output are asked for; 0 asks for
// its values. Client shared memory is refused. binary_data, which is HTTP's,
// means nothing here, and a key that repeats counts as the last one says.
func readOutput(out *wire.Output) (classes uint64, err error) {
	var region error
	for _, p := range out.Parameters {
		switch p.Key {
		case regionKey:
			region = unknownRegion(p)
		case "classification":
			if classes, err = readClasses(p); err != nil {
				return 0, err
			}
		}
	}
	if region != nil && classes > 0 {
		return 0, errs.New(errs.InvalidParameter, "output can't set both 'shared_memory_region' and 'classification'")
	}
	return classes, region
}

func readClasses(p infer.Parameter) (uint64, error) {
	n, ok := p.Value.(int64)
	if !ok {
		return 0, errs.New(errs.InvalidParameter, "invalid value type for 'classification' parameter, expected int64_param")
	}
	if n <= 0 {
		return 0, errs.New(errs.InvalidParameter, "invalid value for 'classification' parameter, expected >= 0")
	}
	return uint64(n), nil
}
