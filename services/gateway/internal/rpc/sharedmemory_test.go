package rpc_test

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/policy"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/rpc"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
)

// outcome is how a call ends.
type outcome struct {
	code codes.Code
	text string
}

func outcomeOf(err error) outcome { return outcome{status.Code(err), status.Convert(err).Message()} }

// host is a server and its clients' shared memory: the files in, which has the numbers
// from 0, and out.
type host struct {
	*server
	dir string
}

func newHost(t testing.TB, o path.Options) *host {
	t.Helper()
	h := &host{dir: t.TempDir()}
	numbers := make([]byte, 256)
	for i := range 64 {
		binary.LittleEndian.PutUint32(numbers[4*i:], uint32(i))
	}
	for name, data := range map[string][]byte{"in": numbers, "out": make([]byte, 256)} {
		if err := os.WriteFile(filepath.Join(h.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o.Regions = regions.New(regions.Options{Directory: h.dir})
	t.Cleanup(o.Regions.Close)
	h.server = serveWith(t, rpc.Options{Options: o})
	return h
}

func (h *host) register(ctx context.Context, name, key string, size uint64) error {
	_, err := h.client.SystemSharedMemoryRegister(ctx, &inference.SystemSharedMemoryRegisterRequest{Name: name, Key: key, ByteSize: size})
	return err
}

// out returns the numbers of the file out from the n-th on.
func (h *host) out(t *testing.T, n, count int) []int32 {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	numbers := make([]int32, count)
	for i := range numbers {
		numbers[i] = int32(binary.LittleEndian.Uint32(data[4*(n+i):]))
	}
	return numbers
}

// shared are the parameters of a tensor in a region.
func shared(region string, offset, size int64) map[string]*inference.InferParameter {
	p := map[string]*inference.InferParameter{
		"shared_memory_region":    {ParameterChoice: &inference.InferParameter_StringParam{StringParam: region}},
		"shared_memory_byte_size": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: size}},
	}
	if offset != 0 {
		p["shared_memory_offset"] = &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: offset}}
	}
	return p
}

func TestClientsShareNoMemoryByDefault(t *testing.T) {
	s, ctx := serve(t), t.Context()
	disabled := outcome{codes.Unimplemented, "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."}
	for name, c := range map[string]struct {
		call call
		want outcome
	}{
		"all system regions":         {systemStatus(""), outcome{}},
		"a system region":            {systemStatus("r"), outcome{codes.NotFound, "Unable to find system shared memory region: 'r'"}},
		"all CUDA regions":           {cudaStatus(""), outcome{}},
		"a CUDA region":              {cudaStatus("r"), outcome{codes.NotFound, "Unable to find cuda shared memory region: 'r'"}},
		"system registration":        {registerSystem, disabled},
		"CUDA registration":          {registerCUDA(64), disabled},
		"the end of a system region": {unregisterSystem(""), disabled},
		"the end of a CUDA region":   {unregisterCUDA, disabled},
	} {
		if got := outcomeOf(c.call(ctx, s.client)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestRegionsAreRegisteredAndListed(t *testing.T) {
	h, ctx := newHost(t, path.Options{}), t.Context()
	for _, c := range []struct { // in their order
		name string
		call call
		want outcome
	}{
		{"a file that is not there", registerSystem, outcome{codes.Internal, "Unable to open shared memory region: '/r'"}},
		{"a region", func(ctx context.Context, _ inference.GRPCInferenceServiceClient) error {
			return h.register(ctx, "r", "/in", 256)
		}, outcome{}},
		{"the same", registerSystem, outcome{codes.AlreadyExists, "shared memory region 'r' already in manager"}},
		{"one without a name", func(ctx context.Context, _ inference.GRPCInferenceServiceClient) error {
			return h.register(ctx, "", "/in", 256)
		}, outcome{codes.InvalidArgument, "'region name' is necessary to register system shared memory region"}},
		{"one beyond its file", func(ctx context.Context, _ inference.GRPCInferenceServiceClient) error {
			return h.register(ctx, "s", "/in", 257)
		}, outcome{codes.InvalidArgument, "failed to register shared memory region 's': invalid args"}},
		{"its status", systemStatus("r"), outcome{}},
		{"its status as CUDA", cudaStatus("r"), outcome{codes.NotFound, "The region named 'r' is registered as system shared memory, not CUDA shared memory"}},
		{"the status of none", systemStatus("s"), outcome{codes.NotFound, "Unable to find system shared memory region: 's'"}},
		{"CUDA with its name", registerCUDA(64), outcome{codes.AlreadyExists, "shared memory region 'r' already in manager"}},
		{"CUDA with a short handle", registerCUDA(63), outcome{codes.InvalidArgument, "failed to register shared memory region: invalid args"}},
		{"the end of CUDA regions", unregisterCUDA, outcome{}},
		{"which ends no others", systemStatus("r"), outcome{}},
		{"the end of another", unregisterSystem("s"), outcome{}},
		{"the end of all", unregisterSystem(""), outcome{}},
		{"CUDA", registerCUDA(64), outcome{codes.InvalidArgument, "failed to register CUDA shared memory region: 'r', GPUs not supported"}},
	} {
		if got := outcomeOf(c.call(ctx, h.client)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	for _, key := range []string{"/in", "out"} {
		if err := h.register(ctx, key, key, 8); err != nil {
			t.Fatal(err)
		}
	}
	list, err := h.client.SystemSharedMemoryStatus(ctx, &inference.SystemSharedMemoryStatusRequest{})
	if r := list.GetRegions(); err != nil || len(r) != 2 || r["/in"].GetKey() != "/in" || r["out"].GetName() != "out" || r["out"].GetByteSize() != 8 {
		t.Errorf("%v, %v", list, err)
	}
}

// addShared is a request for add_sub whose inputs begin at the numbers a and b of the file
// in, and whose outputs go to the numbers 0 and 16 of the file out.
func addShared(a, b int64) *inference.ModelInferRequest {
	r := addSub(1)
	r.RawInputContents = nil
	r.Inputs[0].Parameters, r.Inputs[1].Parameters = shared("in", 4*a, 64), shared("in", 4*b, 64)
	r.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{
		{Name: "OUTPUT0", Parameters: shared("out", 0, 64)}, {Name: "OUTPUT1", Parameters: shared("out", 64, 64)},
	}
	return r
}

func registered(t *testing.T) (*host, context.Context) {
	t.Helper()
	h, ctx := newHost(t, path.Options{}), t.Context()
	for _, name := range []string{"in", "out"} {
		if err := h.register(ctx, name, "/"+name, 256); err != nil {
			t.Fatal(err)
		}
	}
	return h, ctx
}

func sums(a, b int32) []int32 {
	list := make([]int32, 16)
	for i := range list {
		list[i] = a + b + 2*int32(i)
	}
	return list
}

func TestTensorsInRegions(t *testing.T) {
	h, ctx := registered(t)
	reply, err := h.client.ModelInfer(ctx, addShared(0, 32))
	if err != nil {
		t.Fatal(err)
	}
	if raw := reply.GetRawOutputContents(); len(raw) != 2 || len(raw[0])+len(raw[1]) != 0 || reply.GetOutputs()[1].GetName() != "OUTPUT1" || len(reply.GetOutputs()[0].GetShape()) != 2 {
		t.Errorf("the response is %v", reply)
	}
	if got := h.out(t, 0, 16); !slices.Equal(got, sums(0, 32)) {
		t.Errorf("the sums are %v", got)
	}
	if got := h.out(t, 16, 16); got[0] != -32 || got[15] != -32 {
		t.Errorf("the differences are %v", got)
	}
	// An input in a region takes no raw contents: the only ones are the other's.
	mixed := addSub(1)
	mixed.Inputs[0].Parameters = shared("in", 4, 64)
	mixed.RawInputContents = mixed.RawInputContents[1:]
	mixed.Outputs = []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0", Parameters: shared("out", 192, 64)}, {Name: "OUTPUT1"}}
	b := int32(binary.LittleEndian.Uint32(mixed.RawInputContents[0]))
	reply, err = h.client.ModelInfer(ctx, mixed)
	if err != nil {
		t.Fatal(err)
	}
	if raw := reply.GetRawOutputContents(); len(raw) != 2 || len(raw[0]) != 0 || len(raw[1]) != 64 || h.out(t, 48, 1)[0] != 1+b {
		t.Errorf("the response is %v, and the sums are %v", reply, h.out(t, 48, 16))
	}
}

func TestRangesThatRequestsMayNotName(t *testing.T) {
	h, ctx := registered(t)
	input := func(p map[string]*inference.InferParameter) *inference.ModelInferRequest {
		r := addShared(0, 0)
		r.Inputs[1].Parameters = p
		return r
	}
	output := func(p map[string]*inference.InferParameter) *inference.ModelInferRequest {
		r := addShared(0, 0)
		r.Outputs[1].Parameters = p
		return r
	}
	const offset, end = "Invalid offset for shared memory region: ", "Invalid offset + byte size for shared memory region: "
	for name, c := range map[string]struct {
		r    *inference.ModelInferRequest
		want outcome
	}{
		"an input of no region":          {input(shared("r", 0, 64)), outcome{codes.NotFound, "Unable to find shared memory region: 'r'"}},
		"an input with a negative size":  {input(shared("in", 0, -64)), outcome{codes.InvalidArgument, end + "'in'"}},
		"an input at a negative offset":  {input(shared("in", -1, 64)), outcome{codes.InvalidArgument, offset + "'in'"}},
		"an input at the least offset":   {input(shared("in", math.MinInt64, 64)), outcome{codes.InvalidArgument, offset + "'in'"}},
		"an input beyond":                {input(shared("in", 256, 64)), outcome{codes.InvalidArgument, offset + "'in'"}},
		"an input that ends beyond":      {input(shared("in", 193, 64)), outcome{codes.InvalidArgument, end + "'in'"}},
		"an input of another size":       {input(shared("in", 0, 128)), outcome{codes.InvalidArgument, "[request id: <id_unknown>] input byte size mismatch for input 'INPUT1' for model 'add_sub'. Expected 64, got 128"}},
		"an output of no region":         {output(shared("r", 0, 64)), outcome{codes.NotFound, "Unable to find shared memory region: 'r'"}},
		"an output with a negative size": {output(shared("out", 0, -64)), outcome{codes.InvalidArgument, end + "'out'"}},
		"an output beyond":               {output(shared("out", 256, 64)), outcome{codes.InvalidArgument, offset + "'out'"}},
		"an output that does not fit": {output(shared("out", 0, 63)), outcome{
			codes.Internal, "shared memory size specified with the request for output 'OUTPUT1' (63 bytes) should be at least 64 bytes to hold the results",
		}},
	} {
		c.r.Id = ""
		if _, err := h.client.ModelInfer(ctx, c.r); outcomeOf(err) != c.want {
			t.Errorf("%s: %+v, want %+v", name, outcomeOf(err), c.want)
		}
	}
}

func TestStreamsUseRegions(t *testing.T) {
	h, ctx := registered(t)
	stream, err := h.client.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	unknown, small := addShared(0, 0), addShared(0, 0)
	unknown.Inputs[0].Parameters = shared("r", 0, 64)
	small.Outputs[0].Parameters = shared("out", 0, 8)
	decoupled := addShared(1, 2)
	decoupled.ModelName = "tokens"
	for _, r := range []*inference.ModelInferRequest{unknown, small, addShared(0, 16)} {
		r.Id = "7"
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{
		"Unable to find shared memory region: 'r'",
		"shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least 64 bytes to hold the results", "",
	} {
		item, err := stream.Recv()
		if err != nil || item.GetErrorMessage() != want {
			t.Fatalf("%d: %v, %v, want %q", i, item, err, want)
		}
		// As with Triton's, an error before the request is queued names no model.
		if named := item.GetInferResponse().GetModelName() != ""; named == (i == 0) {
			t.Errorf("%d: %v", i, item)
		}
	}
	if got := h.out(t, 0, 16); !slices.Equal(got, sums(0, 16)) {
		t.Errorf("the sums are %v", got)
	}
	if err := stream.Send(decoupled); err != nil {
		t.Fatal(err)
	}
	item, err := stream.Recv()
	if err != nil || item.GetErrorMessage() != "" || !slices.Equal(h.out(t, 0, 16), sums(1, 2)) {
		t.Errorf("a decoupled model: %v, %v, %v", item, err, h.out(t, 0, 16))
	}
	_ = stream.CloseSend()
	for err == nil {
		_, err = stream.Recv()
	}
}

// A tenant that may use some models alone may give its regions any names, and sees and
// uses no region of another.
func TestRegionsBelongToTheirTenant(t *testing.T) {
	text := "version: 1\ntenants:\n"
	for _, name := range []string{"mine", "other"} {
		text += "  " + name + ": {models: [add_sub], apis: [inference, shared-memory], keys: [{sha256: " + policy.Key(name) + "}]}\n"
	}
	p, findings := policy.Read([]byte(text))
	if p == nil {
		t.Fatal(findings)
	}
	all := tenants.New(unmetered{}, time.Now)
	all.Set(p, nil)
	h := newHost(t, path.Options{Tenants: all, Costs: new(tenants.Costs)})
	as := func(key string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key)
	}
	for _, name := range []string{"in", "out"} {
		if err := h.register(as("mine"), name, "/"+name, 256); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.register(as("other"), "in", "/in", 256); outcomeOf(err) != (outcome{codes.Internal, "Unable to open shared memory region: '/in'"}) {
		t.Errorf("the other registers the file: %v", err)
	}
	if _, err := h.client.ModelInfer(as("other"), addShared(0, 0)); outcomeOf(err) != (outcome{codes.NotFound, "Unable to find shared memory region: 'in'"}) {
		t.Errorf("the other uses the region: %v", err)
	}
	if err := unregisterSystem("")(as("other"), h.client); err != nil {
		t.Error(err)
	}
	if list, err := h.client.SystemSharedMemoryStatus(as("other"), &inference.SystemSharedMemoryStatusRequest{}); err != nil || len(list.GetRegions()) != 0 {
		t.Errorf("the other sees %v: %v", list, err)
	}
	if _, err := h.client.ModelInfer(as("mine"), addShared(0, 0)); err != nil {
		t.Error(err)
	}
}

type call = func(context.Context, inference.GRPCInferenceServiceClient) error

func systemStatus(region string) call {
	return func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		_, err := c.SystemSharedMemoryStatus(ctx, &inference.SystemSharedMemoryStatusRequest{Name: region})
		return err
	}
}

func cudaStatus(region string) call {
	return func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		_, err := c.CudaSharedMemoryStatus(ctx, &inference.CudaSharedMemoryStatusRequest{Name: region})
		return err
	}
}

func registerSystem(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
	_, err := c.SystemSharedMemoryRegister(ctx, &inference.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/r", ByteSize: 8})
	return err
}

func registerCUDA(handle int) call {
	return func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		_, err := c.CudaSharedMemoryRegister(ctx, &inference.CudaSharedMemoryRegisterRequest{Name: "r", RawHandle: []byte(strings.Repeat("h", handle)), ByteSize: 8})
		return err
	}
}

func unregisterSystem(region string) call {
	return func(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
		_, err := c.SystemSharedMemoryUnregister(ctx, &inference.SystemSharedMemoryUnregisterRequest{Name: region})
		return err
	}
}

func unregisterCUDA(ctx context.Context, c inference.GRPCInferenceServiceClient) error {
	_, err := c.CudaSharedMemoryUnregister(ctx, &inference.CudaSharedMemoryUnregisterRequest{})
	return err
}
