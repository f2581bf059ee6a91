package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
)

// What becomes of a flag of Triton's that serve does not act on, in its tag
// effect. Every other flag works.
const (
	effectTag = "effect"
	// effectNone is of a flag that is taken and changes nothing.
	effectNone = "none"
	// effectRefused is of a flag whose value would change what clients or
	// models see, or who may call. The tag unless lists, with | between them,
	// the values that ask for nothing.
	effectRefused = "refused"
	// effectLater is of a flag that is taken and has no effect yet.
	effectLater = "later"
)

// idle are Triton's flags that are taken so that a start command stays as it
// is. The help of each says why it changes nothing.
type idle struct {
	PeerAccess config.Switch `name:"enable-peer-access" default:"true" hidden:"" effect:"none" help:"Each GPU has a worker of its own."`
	RepoAgents string        `name:"repoagent-directory" hidden:"" effect:"none" help:"There are no repository agents; a configuration that asks for one is refused."`

	HTTPThreads int `name:"http-thread-count" default:"8" hidden:"" effect:"none" help:"Connections have no threads of their own."`

	GRPCThreads    int `name:"grpc-infer-thread-count" default:"2" hidden:"" effect:"none" help:"Requests have no threads of their own."`
	AllocationPool int `name:"grpc-infer-allocation-pool-size" default:"8" hidden:"" effect:"none" help:"The server reuses message memory according to use."`
	ResponsePool   int `name:"grpc-max-response-pool-size" default:"2147483647" hidden:"" effect:"none" help:"The server reuses message memory according to use."`
	PingsNoData    int `name:"grpc-http2-max-pings-without-data" default:"2" hidden:"" effect:"none" help:"Probes are sent only on idle connections."`

	CacheDir string `name:"cache-directory" hidden:"" effect:"none" help:"Caches are built in; --cache-config names one."`

	CUDAPool       []string `name:"cuda-memory-pool-byte-size" sep:"none" hidden:"" effect:"none" help:"A model allocates the GPU memory that it needs, up to its gpu_mem_limit."`
	CUDAAddresses  []string `name:"cuda-virtual-address-size" sep:"none" hidden:"" effect:"none" help:"A model allocates the GPU memory that it needs, up to its gpu_mem_limit."`
	Capability     string   `name:"min-supported-compute-capability" hidden:"" effect:"none" help:"A load on a GPU that CUDA does not support fails with that cause."`
	BufferThreads  int      `name:"buffer-manager-thread-count" default:"0" hidden:"" effect:"none" help:"Each instance gathers its own inputs."`
	GPULoadLimit   []string `name:"model-load-gpu-limit" sep:"none" hidden:"" effect:"none" help:"Use --memory-budget of each worker."`
	SagemakerPort  int      `name:"sagemaker-port" default:"8080" hidden:"" effect:"none" help:"Belongs to --allow-sagemaker."`
	SagemakerRange string   `name:"sagemaker-safe-port-range" hidden:"" effect:"none" help:"Belongs to --allow-sagemaker."`
	SagemakerThr   int      `name:"sagemaker-thread-count" default:"8" hidden:"" effect:"none" help:"Belongs to --allow-sagemaker."`
	VertexPort     int      `name:"vertex-ai-port" default:"8080" hidden:"" effect:"none" help:"Belongs to --allow-vertex-ai."`
	VertexThreads  int      `name:"vertex-ai-thread-count" default:"8" hidden:"" effect:"none" help:"Belongs to --allow-vertex-ai."`
	VertexModel    string   `name:"vertex-ai-default-model" hidden:"" effect:"none" help:"Belongs to --allow-vertex-ai."`
}

// later are Triton's flags that are taken so that start commands work, although what they
// ask for is not there yet. The help of each says what is not.
type later struct {
	TraceConfig  []string `name:"trace-config" sep:"none" hidden:"" effect:"later" help:"Requests are not traced yet."`
	TraceFile    string   `name:"trace-file" hidden:"" effect:"later" help:"Requests are not traced yet."`
	TraceLevel   []string `name:"trace-level" sep:"none" hidden:"" effect:"later" help:"Requests are not traced yet."`
	TraceRate    int      `name:"trace-rate" default:"1000" hidden:"" effect:"later" help:"Requests are not traced yet."`
	TraceCount   int      `name:"trace-count" default:"-1" hidden:"" effect:"later" help:"Requests are not traced yet."`
	TraceLogFreq int      `name:"trace-log-frequency" default:"0" hidden:"" effect:"later" help:"Requests are not traced yet."`
}

// refused are Triton's flags that would be a promise if they were taken. The
// help of each says what to do instead.
type refused struct {
	Sagemaker config.Switch `name:"allow-sagemaker" default:"false" hidden:"" effect:"refused" unless:"false" help:"There is no SageMaker front end: call /v2/models over HTTP."`
	Vertex    config.Switch `name:"allow-vertex-ai" default:"false" hidden:"" effect:"refused" unless:"false" help:"There is no Vertex AI front end: call /v2/models over HTTP."`
}

// checkEffects refuses values that serve cannot honor.
func checkEffects(command *kong.Context) error {
	for _, f := range givenFlags(command, effectRefused) {
		for _, value := range valuesOf(f) {
			if !slices.Contains(strings.Split(f.Tag.Get("unless"), "|"), value) {
				return errs.New(errs.ConfigInvalid, "--%s=%s is not supported. %s", f.Name, value, f.Help)
			}
		}
	}
	return nil
}

// givenFlags lists the flags with an effect that the command line, the
// environment or the settings file give.
func givenFlags(command *kong.Context, effect string) []*kong.Flag {
	var flags []*kong.Flag
	for _, p := range command.Path {
		if p.Flag != nil && p.Flag.Tag.Get(effectTag) == effect && !slices.Contains(flags, p.Flag) {
			flags = append(flags, p.Flag)
		}
	}
	return flags
}

// named names the flags with an effect that are given.
func named(command *kong.Context, effect string) []string {
	var names []string
	for _, f := range givenFlags(command, effect) {
		names = append(names, "--"+f.Name)
	}
	return names
}

// valuesOf gives a flag's values as text.
func valuesOf(f *kong.Flag) []string {
	v := f.Target.Interface()
	if list, ok := v.([]string); ok {
		return list
	}
	return []string{fmt.Sprint(v)}
}
