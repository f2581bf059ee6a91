package warmup

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// lengthBytes is the size of the length in front of each element of BYTES.
const lengthBytes = 4

// values makes the bytes of an input, at most limit of them.
func values(v backend.Version, sample string, in *modelconfig.WarmupInput, limit int64) ([]byte, error) {
	size, err := sizeOf(in)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, fmt.Errorf("%d bytes for each request are too much for the sample's batch, which may have %d: warm up with a smaller shape or batch", size, int64(maxBytes))
	}
	switch in.Kind {
	case modelconfig.WarmupFile:
		return fromFile(filepath.Join(v.ModelDir, "warmup"), in, size, limit)
	case modelconfig.WarmupRandom:
		data := make([]byte, size)
		fill(data, in.Datatype, source(sample, in.Name))
		return data, nil
	}
	return make([]byte, size), nil
}

// sizeOf is the size of the input; that of strings if all are empty.
func sizeOf(in *modelconfig.WarmupInput) (int64, error) {
	n, ok := in.Dims.Elements()
	each := int64(in.Datatype.Size())
	if in.Datatype == tensor.Bytes {
		each = lengthBytes
	}
	if !ok || each == 0 || n > math.MaxInt64/each {
		return 0, fmt.Errorf("%s%s is not the shape of a tensor", in.Datatype, in.Dims)
	}
	return n * each, nil
}

// fromFile reads an input's bytes: the first size ones, or for strings the
// whole file, of which size is the least. The directory is not left, by links
// either.
func fromFile(dir string, in *modelconfig.WarmupInput, size, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(in.File, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not hold up the load
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("'%s' is not a regular file", f.Name())
	case info.Size() < size:
		return nil, fmt.Errorf("warmup setting expects %d bytes, but the data provided from %s only has %d bytes", size, in.File, info.Size())
	case info.Size() > limit && in.Datatype == tensor.Bytes:
		return nil, fmt.Errorf("'%s' has %d bytes, too much for the sample's batch", f.Name(), info.Size())
	}
	if in.Datatype == tensor.Bytes {
		size = info.Size()
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return data, checkStrings(in, data)
}

// checkStrings checks that the bytes of a BYTES input are its elements.
func checkStrings(in *modelconfig.WarmupInput, data []byte) error {
	if in.Datatype != tensor.Bytes {
		return nil
	}
	want, _ := in.Dims.Elements()
	if n, err := tensor.CountBytes(data); err != nil || n != want {
		return fmt.Errorf("'%s' does not hold %d strings, each after its length in 4 bytes", in.File, want)
	}
	return nil
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
