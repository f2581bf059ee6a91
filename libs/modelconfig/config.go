package modelconfig

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/tensor"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Config is a model's configuration, normalized and validated: defaults are
// filled in and every rule of the format holds. It is immutable.
type Config struct {
	Name     string
	Platform string
	Backend  string
	// MaxBatchSize is the largest execution batch size; 0 for a model without
	// a batch dimension.
	MaxBatchSize int64
	Inputs       []IO
	Outputs      []IO
	// BatchInputs are inputs of the model that the server creates from a batch, BatchOutputs
	// are outputs that it splits by the shapes of inputs.
	BatchInputs  []BatchInput
	BatchOutputs []BatchOutput
	// Batching is the dynamic batcher's configuration, or nil for one
	// request per execution.
	Batching *DynamicBatching
	// Padding lets requests of different shapes share a batch; nil if only those
	// of equal shapes do.
	Padding *Padding
	// Sequences is the configuration of the sequence batcher, or nil if requests
	// do not depend on one another.
	Sequences *SequenceBatching
	// Ensemble is the graph of an ensemble; nil for a model that a backend executes.
	Ensemble *Ensemble
	// Decoupled models give any number of responses per request.
	Decoupled bool
	// Cached says that responses may be kept for equal requests.
	Cached bool
	// Shared says that equal requests in flight may share one execution.
	Shared bool
	Groups []InstanceGroup
	// Filename is the model's file or directory within a version directory.
	Filename string
	// CapabilityFilenames are those for GPUs of a compute capability, such as 9.0.
	CapabilityFilenames map[string]string
	// Placement says on which workers the model runs.
	Placement Placement
	// Parameters are the model's own, as text.
	Parameters map[string]string
	// GraphLevel is optimization.graph.level: -1 basic, 0 all, 1 extended,
	// 2 disabled.
	GraphLevel int32
	// CPUAccelerators replace the backend's own code for instances on CPUs, as far as they
	// support the model, and GPUAccelerators for those on GPUs.
	CPUAccelerators, GPUAccelerators []Accelerator
	// MetricTags are labels for the model's metrics, without the "_" prefix.
	MetricTags map[string]string
	// HistogramBuckets are the upper bounds, ascending, that the model sets
	// for histograms, by the name of the family.
	HistogramBuckets map[string][]float64
	// Warmup are the executions that an instance runs before its first request, in this order.
	Warmup []WarmupSample

	source *inference.ModelConfig
}

// Accelerator is an execution accelerator with its parameters.
type Accelerator struct {
	Name       string
	Parameters map[string]string
}

// IO is one input or output.
type IO struct {
	Name     string
	Datatype tensor.Datatype
	// Dims are the dimensions without the batch dimension; -1 is any size.
	Dims tensor.Shape
	// Reshape is the shape, without the batch dimension, that the backend
	// sees in place of Dims; nil if they are the same. It may be empty.
	Reshape tensor.Shape
	// HasReshape distinguishes an empty Reshape from none.
	HasReshape bool
	// Optional inputs may be left out of a request.
	Optional bool
	// Ragged inputs of different shapes may share a batch.
	Ragged bool
	// LabelFile names an output's labels, relative to the model directory.
	LabelFile string
	// Labels are an output's class labels, in the order of its classes; nil
	// if it has none, or none were given by [Config.WithLabels].
	Labels []string
}

// BatchInputKind is the content of a [BatchInput].
type BatchInputKind uint8

// The kinds of batch inputs. Counts are of elements, of a request's source
// input with all its rows.
const (
	// BatchElementCount is each request's count.
	BatchElementCount BatchInputKind = iota
	// BatchAccumulatedElementCount is the sum of the counts so far, WithZero
	// the same after a 0.
	BatchAccumulatedElementCount
	BatchAccumulatedElementCountWithZero
	// BatchMaxElementCountAsShape is the largest count, as the only dimension
	// of a tensor whose elements mean nothing.
	BatchMaxElementCountAsShape
	// BatchItemShape is the shape of each row, [rows, rank]; Flatten is the
	// same of one dimension.
	BatchItemShape
	BatchItemShapeFlatten
)

// BatchInput is an input that the server makes from the source inputs of the
// requests in a batch.
type BatchInput struct {
	Kind BatchInputKind
	// Targets are the model's inputs that take it, Source is an input of the
	// configuration.
	Targets []string
	Source  string
	// Datatype is INT32 or FP32.
	Datatype tensor.Datatype
}

// BatchOutput are outputs of one dimension, of which each request gets as many
// elements as its source input has, in that input's shape.
type BatchOutput struct {
	Targets []string
	Source  string
}

// DynamicBatching configures the dynamic batcher.
type DynamicBatching struct {
	// PreferredSizes are early-send points, ascending, each at most
	// MaxBatchSize.
	PreferredSizes []int64
	// MaxQueueDelayMicros is how long a request may wait for others to join its batch.
	MaxQueueDelayMicros uint64
	PreserveOrdering    bool
	PriorityLevels      uint64
	DefaultPriority     uint64
	// DefaultPolicy holds for priority levels without a policy of their own.
	DefaultPolicy QueuePolicy
	Policies      map[uint64]QueuePolicy
}

// QueuePolicy bounds one priority level's queue.
type QueuePolicy struct {
	// Delay keeps timed-out requests at the end of the queue instead of
	// rejecting them.
	Delay bool
	// DefaultTimeoutMicros is 0 for none.
	DefaultTimeoutMicros uint64
	AllowTimeoutOverride bool
	// MaxQueueSize is the most requests that may wait; 0 is no limit.
	MaxQueueSize uint32
}

// DeviceKind is what an instance group asks to run on.
type DeviceKind uint8

// The device kinds.
const (
	KindAuto DeviceKind = iota
	KindGPU
	KindCPU
	KindModel
)

// InstanceGroup asks for instances of one kind.
type InstanceGroup struct {
	Name string
	// Kind is KindAuto where placement decides.
	Kind DeviceKind
	// Count is how many instances each device has. CPUCount, if not 0, is how many the CPUs
	// have: a group that leaves both open has more there for some backends.
	Count, CPUCount int
	GPUs            []int32
	// Profiles are the optimization profiles of a plan that instances may run with.
	Profiles []string
	// Passive instances are loaded but never scheduled.
	Passive bool
	// HostPolicy names the host policy of the instances.
	HostPolicy string
	// Resources are the resources that an execution needs under a rate limiter. Priority
	// divides the instance's share of turns; at least 1.
	Resources []Resource
	Priority  uint32
}

// CountOn is how many instances of the group a device of that kind has.
func (g InstanceGroup) CountOn(kind DeviceKind) int {
	if kind == KindCPU && g.CPUCount > 0 {
		return g.CPUCount
	}
	return g.Count
}

// Resource is some of a resource that executions share.
type Resource struct {
	// Name has no upper-case letters.
	Name string
	// Global resources are shared by all devices of a pool; each device has others
	// for itself.
	Global bool
	Count  uint32
}

// Proto returns the whole configuration, normalized, of which c is the view,
// or nil if c was not made by [FromProto]. It is shared and never changed.
func (c *Config) Proto() *inference.ModelConfig { return c.source }

// Batches reports whether tensors carry a batch dimension.
func (c *Config) Batches() bool { return c.MaxBatchSize > 0 }

// WithLabels returns the configuration with the outputs' class labels, which
// are kept in files beside it. of gives an output's, and nil for none.
func (c *Config) WithLabels(of func(output string) []string) *Config {
	labeled := *c
	labeled.Outputs = slices.Clone(c.Outputs)
	for i := range labeled.Outputs {
		labeled.Outputs[i].Labels = of(labeled.Outputs[i].Name)
	}
	return &labeled
}

// Input returns the input of that name, or nil.
func (c *Config) Input(name string) *IO { return find(c.Inputs, name) }

// Output returns the output of that name, or nil.
func (c *Config) Output(name string) *IO { return find(c.Outputs, name) }

// ClientShape returns the shape of io that clients see: with a leading -1
// where the model batches.
func (c *Config) ClientShape(io *IO) tensor.Shape {
	if c.Batches() {
		return io.Dims.Prepend(-1)
	}
	return io.Dims
}

// BackendDims returns the dimensions, without the batch dimension, that the
// backend sees.
func (io *IO) BackendDims() tensor.Shape {
	if io.HasReshape {
		return io.Reshape
	}
	return io.Dims
}

func find(list []IO, name string) *IO {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}
