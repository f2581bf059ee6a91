package backends

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/onnxheader"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Plans is the name of the backend for TensorRT's plans.
const Plans = "tensorrt"

// PlanSuffix is behind a plan's name in that of the file which describes it: a plan itself is
// readable only by the version of TensorRT that has built it.
const PlanSuffix = ".json"

func tensorRT() Descriptor {
	return Descriptor{
		Name: Plans, BuiltIn: true, Engine: true, GPU: true, FileRequired: true, Profiles: true,
		Formats: []Format{{Platform: "tensorrt_plan", File: "model.plan", Standard: true}},
		Header:  readPlanHeader, HeaderSuffix: PlanSuffix,
	}
}

// Plan describes a plan, as the file beside it does, which is written where the plan is built.
type Plan struct {
	// TensorRT is the version that built the plan, such as 10.13.3, and Capability the compute
	// capability of the GPU: the plan runs only with these.
	TensorRT   string `json:"tensorrt"`
	Capability string `json:"compute_capability"`
	// Precision is what the builder might use: fp32, tf32, fp16, bf16, int8.
	Precision string `json:"precision"`
	// Profiles are the ranges of shapes that it was optimized for, in the plan's order.
	Profiles []PlanProfile `json:"profiles"`
	Inputs   []PlanTensor  `json:"inputs"`
	Outputs  []PlanTensor  `json:"outputs"`
}

// PlanProfile is an optimization profile: the shapes of each input.
type PlanProfile struct {
	Name   string               `json:"name"`
	Inputs map[string]PlanRange `json:"inputs"`
}

// PlanRange is the least, the best and the largest shape.
type PlanRange struct {
	Min tensor.Shape `json:"min"`
	Opt tensor.Shape `json:"opt"`
	Max tensor.Shape `json:"max"`
}

// PlanTensor is an input or output, with -1 for a dimension of any size.
type PlanTensor struct {
	Name     string       `json:"name"`
	Datatype string       `json:"datatype"`
	Shape    tensor.Shape `json:"shape"`
}

// largestPlan bounds a description, in bytes.
const largestPlan = 1 << 20

// ReadPlan reads a plan's description. Its errors say what is wrong with it.
func ReadPlan(file io.ReaderAt, size int64) (*Plan, error) {
	if size > largestPlan {
		return nil, fmt.Errorf("the description of the plan has %d bytes, at most %d are read", size, largestPlan)
	}
	p := new(Plan)
	d := json.NewDecoder(io.NewSectionReader(file, 0, size))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("the description of the plan is not what examples/tensorrt/build.py writes: %w", err)
	}
	return p, p.validate()
}

func (p *Plan) validate() error {
	if p.TensorRT == "" || p.Capability == "" || len(p.Inputs) == 0 || len(p.Outputs) == 0 {
		return errors.New("the description of the plan lacks tensorrt, compute_capability, inputs or outputs")
	}
	names := make(map[string]bool)
	for _, t := range slices.Concat(p.Inputs, p.Outputs) {
		if _, err := t.element(); err != nil || t.Name == "" || names[t.Name] || len(t.Shape) > 8 || slices.ContainsFunc(t.Shape, func(size int64) bool { return size < -1 }) {
			return fmt.Errorf("the description of the plan has the tensor %q of datatype %q and shape %v", t.Name, t.Datatype, t.Shape)
		}
		names[t.Name] = true
	}
	for _, profile := range p.Profiles {
		for name, r := range profile.Inputs {
			if !names[name] || len(r.Min) != len(r.Max) || len(r.Opt) != len(r.Max) {
				return fmt.Errorf("the profile %q of the plan does not fit its input %q", profile.Name, name)
			}
		}
	}
	return nil
}

// element is the datatype as ONNX numbers it.
func (t PlanTensor) element() (int32, error) {
	d, ok := tensor.ParseDatatype(t.Datatype)
	if !ok || d == tensor.Bytes {
		return 0, fmt.Errorf("TensorRT has no datatype %q", t.Datatype)
	}
	return onnxheader.ElementOf(d), nil
}

// Header describes the plan as if it were an ONNX model.
func (p *Plan) Header() *onnxheader.Header {
	values := func(list []PlanTensor) (all []onnxheader.Value) {
		for _, t := range list {
			element, _ := t.element() // validated
			v := onnxheader.Value{Name: t.Name, Kind: onnxheader.KindTensor, Element: element, HasShape: true}
			for _, size := range t.Shape {
				v.Dims = append(v.Dims, onnxheader.Dim{Size: size})
			}
			all = append(all, v)
		}
		return all
	}
	return &onnxheader.Header{Producer: "TensorRT " + p.TensorRT + " for compute capability " + p.Capability, Inputs: values(p.Inputs), Outputs: values(p.Outputs)}
}

func readPlanHeader(file io.ReaderAt, size int64) (*onnxheader.Header, error) {
	p, err := ReadPlan(file, size)
	if err != nil {
		return nil, err
	}
	return p.Header(), nil
}

// RunsOn returns why the plan does not run with a version of TensorRT on a GPU of a compute
// capability, and what to build again; nil if it does. Plans are not portable: they run with
// the release and on the kind of GPU that they were built with.
func (p *Plan) RunsOn(version, capability string) error {
	if p.Capability == capability && release(p.TensorRT) == release(version) {
		return nil
	}
	return fmt.Errorf("the plan was built by TensorRT %s for compute capability %s, and this worker has TensorRT %s and a GPU of %s: "+
		"build it again there with examples/tensorrt/build.py, or serve the ONNX model that it was built from", p.TensorRT, p.Capability, version, capability)
}

// release is a version without what comes behind its third number.
func release(version string) string {
	parts := strings.Split(version, ".")
	return strings.Join(parts[:min(len(parts), 3)], ".")
}
