package onnxruntime

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

// The parameters of a model, and settings of the backend, that number threads.
const (
	intraOpThreads = "intra_op_thread_count"
	interOpThreads = "inter_op_thread_count"
)

// Options are what holds for all models of the backend.
type Options struct {
	// Pool gives the memory of batches and outputs. It is required.
	Pool *tensor.Pool
	// Threads is how many run the nodes of the models for which nothing below
	// and nothing of their own is set. They are there once: each run adds its
	// caller, and uses of the others what is idle. 0 is 1, the caller alone.
	Threads int
	// IntraOpThreads and InterOpThreads are the threads of each model's
	// session whose configuration does not say: within a node, and across
	// nodes in parallel execution mode. 0 is not set. Negative leaves the
	// choice to ONNX Runtime.
	IntraOpThreads, InterOpThreads int
	// GlobalThreads makes all sessions share the threads of one pool. The
	// numbers of IntraOpThreads and InterOpThreads are then the pool's, 0
	// being one thread per core, and the models' own are ignored.
	GlobalThreads bool
	// Cores are those of the host policies that instance groups name: a
	// model's threads stay on them. A policy that is not there pins nothing.
	Cores map[string]cores.Set
	// OpenVINOLibrary is the path of OpenVINO's execution provider; where it is empty the
	// library is looked for beside ONNX Runtime's.
	OpenVINOLibrary string
	// CUDALibraries are the directories of CUDA's libraries, as a list of paths has them;
	// where it is empty they are looked for beside ONNX Runtime's.
	CUDALibraries string
	// EngineCache is the directory of the engines that TensorRT builds.
	EngineCache string
	// Pinned bounds the memory from and to which GPUs copy by themselves; nil has none.
	Pinned *backend.PinnedMemory
	// DeviceFailed is told that the GPU runs nothing any more in this process, and why; it
	// may be nil.
	DeviceFailed func(error)
	// RunInC is told how many instances there are more; it may be nil.
	RunInC func(n int)
}

// running tells of instances.
func (o *Options) running(n int) {
	if o.RunInC != nil {
		o.RunInC(n)
	}
}

// With returns the options changed by settings of Triton's names for
// --backend-config=onnxruntime. Its error has the reason config_invalid.
// The setting default-max-batch-size is the registry's; here it is only checked.
func (o Options) With(settings map[string]string) (Options, error) {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if err := o.set(key, settings[key]); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (o *Options) set(key, value string) error {
	switch key {
	case "enable-global-threadpool":
		return setSwitchOption(&o.GlobalThreads, key, value)
	case intraOpThreads:
		return setThreadsOption(&o.IntraOpThreads, key, value)
	case interOpThreads:
		return setThreadsOption(&o.InterOpThreads, key, value)
	case "openvino-library":
		o.OpenVINOLibrary = value
		return nil
	case cudaSetting:
		o.CUDALibraries = value
		return nil
	case "engine-cache":
		o.EngineCache = value
		return nil
	case "default-max-batch-size":
		if n, err := strconv.ParseInt(value, 10, 32); err != nil || n < 0 {
			return errs.New(errs.ConfigInvalid, "--backend-config=onnxruntime,%s=%s: it is a number of rows, 0 or more", key, value)
		}
		return nil
	case "enable-memory-tracker":
		on := false
		if err := setSwitchOption(&on, key, value); err != nil || !on {
			return err
		}
		return errs.New(errs.ConfigInvalid, "--backend-config=onnxruntime,%s=%s: there is no memory tracker; leave the setting out", key, value)
	}
	return errs.New(errs.ConfigInvalid, "--backend-config=onnxruntime,%s=%s: the backend has no such setting; it has "+
		"enable-global-threadpool, intra_op_thread_count, inter_op_thread_count, openvino-library, cuda-libraries, engine-cache and default-max-batch-size", key, value)
}

func setSwitchOption(on *bool, key, value string) error {
	v, err := strconv.ParseBool(strings.ToLower(value))
	if err != nil {
		return errs.New(errs.ConfigInvalid, "--backend-config=onnxruntime,%s=%s: it is true or false", key, value)
	}
	*on = v
	return nil
}

// setThreadsOption reads a number of threads, where 0 is the runtime's choice.
func setThreadsOption(threads *int, key, value string) error {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return errs.New(errs.ConfigInvalid, "--backend-config=onnxruntime,%s=%s: it is a number of threads, or 0 for one per core", key, value)
	}
	*threads = int(n)
	if n == 0 {
		*threads = -1
	}
	return nil
}
