package modelconfig

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// WarmupSample is a batch to be executed by each instance before it is ready.
type WarmupSample struct {
	Name string
	// BatchSize is how many requests of one row make the batch, at least 1.
	BatchSize int64
	// Count is how often the batch is executed, at least 1.
	Count uint32
	// Inputs are those of each request, in the order of their names.
	Inputs []WarmupInput
}

// WarmupInput is one input of a warm-up request.
type WarmupInput struct {
	Name     string
	Datatype tensor.Datatype
	// Dims are fixed and without the batch dimension.
	Dims tensor.Shape
	Kind WarmupKind
	// File is the path of a WarmupFile's bytes within the model's directory
	// warmup. It does not lead out of there.
	File string
}

// WarmupKind is where a warm-up input's values come from.
type WarmupKind uint8

// The kinds of warm-up input.
const (
	WarmupZero WarmupKind = iota
	WarmupRandom
	WarmupFile
)

// warmup converts valid samples. Those of batch size 0 are left out: that is
// how one is switched off.
func warmup(samples []*inference.ModelWarmup) []WarmupSample {
	var list []WarmupSample
	for _, s := range samples {
		if s.GetBatchSize() == 0 {
			continue
		}
		v := WarmupSample{Name: s.GetName(), BatchSize: int64(s.GetBatchSize()), Count: max(s.GetCount(), 1)}
		for _, name := range sortedKeys(s.GetInputs()) {
			v.Inputs = append(v.Inputs, warmupInput(name, s.GetInputs()[name]))
		}
		list = append(list, v)
	}
	return list
}

func warmupInput(name string, in *inference.ModelWarmup_Input) WarmupInput {
	v := WarmupInput{Name: name, Datatype: datatype(in.GetDataType()), Dims: slices.Clone(in.GetDims())}
	switch kind := in.GetInputDataType().(type) {
	case *inference.ModelWarmup_Input_RandomData:
		v.Kind = WarmupRandom
	case *inference.ModelWarmup_Input_InputDataFile:
		v.Kind, v.File = WarmupFile, kind.InputDataFile
	}
	return v
}
