package warmup

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/datafile"
)

// values makes the bytes of an input, at most limit of them.
func values(v backend.Version, sample string, in *modelconfig.WarmupInput, limit int64) ([]byte, error) {
	size, err := datafile.Size(in.Datatype, in.Dims)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%d bytes for each request are too much for the sample's batch, which may have %d: warm up with a smaller shape or batch", size, int64(maxBytes))
	}
	switch in.Kind {
	case modelconfig.WarmupFile:
		return datafile.File{
			What: "warmup", Dir: filepath.Join(v.ModelDir, "warmup"), Name: in.File, Datatype: in.Datatype, Dims: in.Dims, Limit: limit,
		}.Read()
	case modelconfig.WarmupRandom:
		data := make([]byte, size)
		fill(data, in.Datatype, source(sample, in.Name))
		return data, nil
	}
	return make([]byte, size), nil
}

// source gives an input the same values at each load, so that a model that
// does not take all values fails always or never.
func source(sample, input string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(sample))
	return rand.New(rand.NewPCG(h.Sum64(), uint64(len(input)))) //nolint:gosec // no secret
}

// fill writes random values: any for integers, 0 or 1 for booleans, from 0 to
// 1 for floating point, whose random bits would be infinities and the like.
// Strings stay empty.
func fill(data []byte, d tensor.Datatype, r *rand.Rand) {
	switch d {
	case tensor.Bytes:
	case tensor.Bool:
		each(data, 1, func(b []byte) { b[0] = byte(r.Uint32() & 1) })
	case tensor.FP16: // a mantissa of 10 bits under the exponent of 0.5
		each(data, 2, func(b []byte) { binary.LittleEndian.PutUint16(b, 0x3800|uint16(r.Uint32())&0x3ff) })
	case tensor.BF16:
		each(data, 2, func(b []byte) { binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(r.Float32())>>16)) })
	case tensor.FP32:
		each(data, 4, func(b []byte) { binary.LittleEndian.PutUint32(b, math.Float32bits(r.Float32())) })
	case tensor.FP64:
		each(data, 8, func(b []byte) { binary.LittleEndian.PutUint64(b, math.Float64bits(r.Float64())) })
	default:
		each(data, 1, func(b []byte) { b[0] = byte(r.Uint32()) })
	}
}

func each(data []byte, size int, set func([]byte)) {
	for ; len(data) >= size; data = data[size:] {
		set(data[:size])
	}
}
