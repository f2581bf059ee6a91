package rpc

import (
	"math"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc/wire"
)

// sequenceIDKey is the parameter for the correlation ID of a request of a sequence.
const sequenceIDKey = "sequence_id"

// reservedPrefix starts the keys that are reserved for Triton's own parameters.
const reservedPrefix = "triton_"

// emptyFinalKey requests the end of a decoupled model's responses as a separate message.
const emptyFinalKey = reservedPrefix + "enable_empty_final_response"

// setParameters applies a request's parameters. If a key repeats, the last one wins.
func setParameters(list []infer.Parameter, r *infer.Request, emptyFinal *bool) error {
	if len(list) == 0 {
		return nil
	}
	at := make(map[string]int) // positions of custom parameters in r.Parameters
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

// maxTimeout is the longest timeout in microseconds: half of the range, so that it can be added to the current
// time.
const maxTimeout = math.MaxInt64 / 2 / int64(time.Microsecond)

// setTimeout reads the queue timeout in microseconds. A negative one counts as none: Triton reads it as a time
// so long that no queue policy accepts it.
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

// sharedInput returns the range of client shared memory that contains an input's data.
func sharedInput(in *wire.Input, model string) (of regions.Range, given bool, err error) {
	of, given, err = readRegion(in.Parameters, in.Name)
	if err == nil && given && in.HasContents() {
		err = errs.New(errs.TensorDataInvalid, "unexpected 'content' provided when using shared memory for input tensor '%s' for model '%s'", in.Name, model)
	}
	return of, given, err
}

// readRegion reads the parameters that name a tensor's range of client shared memory. As in Triton, a negative
// number gives a range beyond every region.
func readRegion(list []infer.Parameter, name string) (of regions.Range, given bool, err error) {
	const regionKey, offsetKey, sizeKey = "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"
	var offset, size any
	for _, p := range list {
		switch p.Key {
		case regionKey:
			if of.Region, given = p.Value.(string); !given {
				return of, false, regionType(p.Key, name, "string_param")
			}
		case offsetKey:
			offset = p.Value
		case sizeKey:
			size = p.Value
		}
	}
	for _, number := range []struct {
		key   string
		value any
		to    *uint64
	}{{offsetKey, offset, &of.Offset}, {sizeKey, size, &of.Size}} {
		if number.value == nil {
			continue
		}
		if !given {
			return of, false, errs.New(errs.InvalidParameter, "'%s' can not be specified without '%s' parameter for tensor '%s'", number.key, regionKey, name)
		}
		n, ok := number.value.(int64)
		if !ok {
			return of, false, regionType(number.key, name, "int64_param")
		}
		*number.to = uint64(n) //nolint:gosec // on purpose
	}
	if given && size == nil {
		return of, false, errs.New(errs.InvalidParameter, "'%s' must be specified along with '%s' parameter for tensor '%s'", sizeKey, regionKey, name)
	}
	return of, given, nil
}

func regionType(key, tensor, want string) error {
	return errs.New(errs.InvalidParameter, "invalid value type for '%s' parameter for tensor '%s', expected %s.", key, tensor, want)
}

// readOutput returns the number of requested classes of an output, 0 for its values, and the range of client
// shared memory that it is written to. It ignores binary_data, which is for HTTP. If a key repeats, the last
// one wins.
func readOutput(out *wire.Output) (classes uint64, to regions.Range, shared bool, err error) {
	to, shared, err = readRegion(out.Parameters, out.Name)
	if err != nil {
		return 0, to, false, err
	}
	for _, p := range out.Parameters {
		if p.Key != "classification" {
			continue
		}
		if classes, err = readClasses(p); err != nil {
			return 0, to, false, err
		}
	}
	if shared && classes > 0 {
		err = errs.New(errs.InvalidParameter, "output can't set both 'shared_memory_region' and 'classification'")
	}
	return classes, to, shared, err
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
