// Package backends describes the backends that a model's configuration may name:
// how each is recognized, which features its models support, and what is known
// without running them. The registry and the validation of configurations use
// these descriptions, so that neither knows a backend by its name.
//
// To add a backend, add a file with its [Descriptor] and a line in [All]. A
// built-in backend also needs a package of the worker that opens it.
package backends

import (
	"io"
	"slices"

	"github.com/nereid-serving/nereid/libs/onnxheader"
)

// Descriptor has the static facts of a backend, known without opening it.
type Descriptor struct {
	// Name is the backend's name in model configurations.
	Name string
	// Formats are the formats of its model files, in the order of lookup; none if a model needs
	// no file.
	Formats []Format
	// BuiltIn says that workers of this release can open it. The others have descriptors so
	// that their models are refused with the right advice, unless the backend directory has
	// code for them.
	BuiltIn bool
	// Instead is the advice for models of a backend that is not built in, as an instruction;
	// empty for the general one.
	Instead string
	// RunsCode says that a model's files are executed: anyone who can write them has the
	// worker's rights.
	RunsCode bool
	// Engine says that models load within the worker's process, where a load slows other
	// models' requests.
	Engine bool
	// FileRequired says that a version without its model file is incomplete.
	FileRequired bool
	// CPU and GPU say on which kinds of devices its instances run.
	CPU, GPU bool
	// CPUInstances is the default number of instances of a group on CPUs; 0 means 1.
	CPUInstances int32
	// BatchTensors says that batch_input and batch_output are supported.
	BatchTensors bool
	// Padding says that inputs of different shapes can be padded to share a batch.
	Padding bool
	// Profiles says that instance groups may choose optimization profiles.
	Profiles bool
	// CPUAccelerators and GPUAccelerators are the names that
	// execution_accelerators may have; nil does not check them.
	CPUAccelerators, GPUAccelerators []string
	// Header reads a model file's metadata, from which configurations are completed and with
	// which they are compared before a worker loads the model. nil if only the engine can read
	// it: such configurations list their inputs and outputs.
	Header func(file io.ReaderAt, size int64) (*onnxheader.Header, error)
	// HeaderSuffix is appended to the model file's name for the file that Header reads; empty
	// reads the model file itself.
	HeaderSuffix string
	// CompletesItself says that a model's own code may complete its configuration:
	// inputs and outputs may be missing, and a worker is asked to run the code.
	CompletesItself bool
	// CompletesTensors says that a worker completes missing inputs and outputs, which only the
	// engine can read from the model file.
	CompletesTensors bool
	// Hosted says that the backend is Python-based and that its code comes with the server.
	Hosted bool
	// CheckParameters returns what is wrong with a model's parameters, in the
	// order of their names. nil accepts all.
	CheckParameters func(parameters map[string]string) []Fault
	// CheckAccelerator returns what is wrong with the parameters of an execution
	// accelerator, in the order of their names. nil accepts all.
	CheckAccelerator func(name string, parameters map[string]string) []Fault
}

// Format is a format of model files.
type Format struct {
	// Platform is the older name for backend and format together; empty if there is none.
	// Aliases are its other names.
	Platform string
	Aliases  []string
	// File is the default name of the model file or directory in a version's
	// directory.
	File string
	// Instead is the advice for models in a format that a built-in backend does not support, as
	// an instruction; empty for supported ones.
	Instead string
	// Standard marks the format of models that name only the backend and whose files do not
	// identify a format.
	Standard bool
}

// Is reports whether a platform's name is the format's.
func (f Format) Is(platform string) bool {
	return platform != "" && (platform == f.Platform || slices.Contains(f.Aliases, platform))
}

// File returns the default name of the standard format's model file; empty if
// the backend has none.
func (d Descriptor) File() string {
	for _, f := range d.Formats {
		if f.Standard {
			return f.File
		}
	}
	return ""
}

// Fault is an error in a parameter of a model.
type Fault struct {
	Parameter string
	// Message says what is wrong, Fix what to do.
	Message, Fix string
}

// All returns the known backends in the order in which their files are looked up.
func All() []Descriptor {
	engines := []Descriptor{tensorFlow(), tensorRT(), onnxRuntime(), openVINO(), pyTorch(), python(), forest(), vLLM(), dali()}
	return append(engines, withoutEngine()...)
}

// Find returns the backend of that name.
func Find(name string) (Descriptor, bool) {
	for _, d := range All() {
		if d.Name == name {
			return d, true
		}
	}
	return Descriptor{}, false
}

// Get is [Find] for callers that treat an unknown backend as one without properties. If such a
// backend exists, it is Python-based.
func Get(name string) Descriptor {
	d, _ := Find(name)
	return d
}

// BuiltIn returns the names of the backends that workers of this release can
// open, sorted.
func BuiltIn() []string { return names(func(d Descriptor) bool { return d.BuiltIn }) }

// Hosted returns the names of the Python-based backends that come with the server,
// sorted.
func Hosted() []string { return names(func(d Descriptor) bool { return d.Hosted }) }

// Completed returns the names of the backends that complete a configuration's inputs and
// outputs from model files, sorted.
func Completed() []string {
	return names(func(d Descriptor) bool { return d.Header != nil || d.CompletesTensors })
}

// WithHeader returns the names of the backends whose model files declare their inputs and
// outputs, sorted.
func WithHeader() []string { return names(func(d Descriptor) bool { return d.Header != nil }) }

func names(of func(Descriptor) bool) []string {
	var list []string
	for _, d := range All() {
		if of(d) {
			list = append(list, d.Name)
		}
	}
	slices.Sort(list)
	return list
}
