package rest_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// host is a server and its clients' shared memory: the files in and out.
type host struct {
	*server
	t   testing.TB
	dir string
}

func newHost(t testing.TB, models []*core.Model, options ...func(*rest.Options)) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	m := regions.New(regions.Options{Directory: h.dir})
	t.Cleanup(m.Close)
	h.server = newServer(t, models, append(options, func(o *rest.Options) { o.Regions = m })...)
	h.put("in", int32s(1, 2, 3, 4, 5, 6, 7, 8))
	h.put("out", strings.Repeat("\xff", 32))
	for _, name := range []string{"in", "out"} {
		h.register(name, `{"key":"/`+name+`","byte_size":32}`)
	}
	return h
}

func (h *host) put(name, content string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), []byte(content), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) get(name string) string {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

func (h *host) register(name, body string) {
	h.t.Helper()
	if a := h.do(request{path: "/v2/systemsharedmemory/region/" + name + "/register", body: body}); a.Status != 200 || a.Body != "" {
		h.t.Fatal(a)
	}
}

// shared are the parameters of a tensor in a region.
func shared(region string, offset, size int) string {
	b, _ := json.Marshal(map[string]any{"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": size})
	return string(b)
}

func TestRegionsAreRegisteredAndListed(t *testing.T) {
	h := newHost(t, repository())
	const system, cuda = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
	handle := func(b64 string) string { return `{"raw_handle":{"b64":"` + b64 + `"},"device_id":0,"byte_size":8}` }
	nonUnsigned := refusal(500, "attempt to access JSON non-unsigned-integer as unsigned-integer", "invalid_json")
	list := `[{"name":"in","key":"/in","offset":0,"byte_size":32},{"name":"out","key":"/out","offset":0,"byte_size":32}]`
	for _, c := range []struct { // in their order
		name string
		request
		want response
	}{
		{"all", request{method: "GET", path: system + "/status"}, success(list)},
		{"one", request{method: "GET", path: system + "/region/in/status"}, success(`[{"name":"in","key":"/in","offset":0,"byte_size":32}]`)},
		{"another", request{method: "GET", path: system + "/region/r/status"}, refusal(404, "Unable to find system shared memory region: 'r'", "region_not_found")},
		{"twice", request{path: system + "/region/in/register", body: `{"key":"/out","byte_size":8}`}, refusal(400, "shared memory region 'in' already in manager", "already_exists")},
		{"an escaped name", request{path: system + "/region/a%20b/register", body: `{"key":"in","offset":8,"byte_size":16}`}, success("")},
		{"its status", request{method: "GET", path: system + "/region/a%20b/status"}, success(`[{"name":"a b","key":"in","offset":8,"byte_size":16}]`)},
		{"its end", request{path: system + "/region/a%20b/unregister"}, success("")},
		{"the end of none", request{path: system + "/region/a%20b/unregister"}, success("")},
		{"no file", request{path: system + "/region/r/register", body: `{"key":"/none","byte_size":8}`}, refusal(500, "Unable to open shared memory region: '/none'", "region_unavailable")},
		{"too many bytes", request{path: system + "/region/r/register", body: `{"key":"/in","byte_size":33}`}, refusal(400, "failed to register shared memory region 'r': invalid args", "region_range")},
		{"no name", request{path: system + "/register", body: `{"key":"/in","byte_size":8}`}, refusal(400, "'region name' is necessary to register system shared memory region", "invalid_parameter")},
		{"no body", request{path: system + "/region/r/register"}, refusal(500, "failed to parse the request JSON buffer: The document is empty. at 0", "invalid_json")},
		{"no JSON", request{path: system + "/region/r/register", body: "{nope"}, refusal(500, "failed to parse the request JSON buffer: Missing a name for object member. at 1", "invalid_json")},
		{"an array", request{path: system + "/region/r/register", body: "[]"}, refusal(400, "Shared memory register request has no 'key' field", "invalid_parameter")},
		{"no size", request{path: system + "/region/r/register", body: `{"key":"/in"}`}, refusal(400, "Shared memory register request has no 'byte_size' field", "invalid_parameter")},
		{"a key that is no text", request{path: system + "/region/r/register", body: `{"key":7,"byte_size":8}`}, refusal(500, "attempt to access JSON non-string as string", "invalid_json")},
		{"a key that is null", request{path: system + "/region/r/register", body: `{"key":null,"byte_size":8}`}, refusal(500, "attempt to access JSON non-string as string", "invalid_json")},
		{"a size that is no number", request{path: system + "/region/r/register", body: `{"key":"/in","byte_size":"8"}`}, nonUnsigned},
		{"a negative offset", request{path: system + "/region/r/register", body: `{"key":"/in","byte_size":8,"offset":-1}`}, nonUnsigned},
		{"a flood", request{path: system + "/region/r/register", body: strings.Repeat(" ", 65<<10)}, refusal(413, "the body of this request may have at most 65536 bytes", "body_too_large")},
		{"CUDA regions", request{method: "GET", path: cuda + "/status"}, success(`[]`)},
		{"a CUDA region", request{method: "GET", path: cuda + "/region/r/status"}, refusal(404, "Unable to find cuda shared memory region: 'r'", "region_not_found")},
		{"a region of another kind", request{method: "GET", path: cuda + "/region/in/status"}, refusal(404, "The region named 'in' is registered as system shared memory, not CUDA shared memory", "region_not_found")},
		{"CUDA without a handle", request{path: cuda + "/region/r/register", body: `{"device_id":0,"byte_size":8}`}, refusal(400, "Shared memory register request has no 'raw_handle' field", "invalid_parameter")},
		{"CUDA with a short handle", request{path: cuda + "/region/r/register", body: handle("eA==")}, refusal(400, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t", "invalid_parameter")},
		{"CUDA with no handle's text", request{path: cuda + "/region/r/register", body: handle("!")}, refusal(400, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t", "invalid_parameter")},
		{"CUDA", request{path: cuda + "/region/r/register", body: handle(strings.Repeat("A", 86) + "==")}, refusal(400, "failed to register CUDA shared memory region: 'r', GPUs not supported", "invalid_parameter")},
		{"the end of all CUDA regions", request{path: cuda + "/unregister"}, success("")},
		{"which ends no others", request{method: "GET", path: system + "/status"}, success(list)},
		{"the end of all", request{path: system + "/unregister"}, success("")},
		{"none", request{method: "GET", path: system + "/status"}, success(`[]`)},
	} {
		if d := cmp.Diff(c.want, h.doLike(c.request, c.want)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
	if len(h.logged) > 0 {
		t.Errorf("logged: %v", h.logged)
	}
}

func TestTensorsInRegions(t *testing.T) {
	const in0, in1 = `{"name":"INPUT0","datatype":"INT32","shape":[1,2],"parameters":`, `{"name":"INPUT1","datatype":"INT32","shape":[1,2],"parameters":`
	const json1 = `{"name":"INPUT1","datatype":"INT32","shape":[1,2],"data":[10,20]}`
	both := in0 + shared("in", 0, 8) + `},` + in1 + shared("in", 24, 8) + `}`
	answer := func(outputs string) string {
		return `{"model_name":"simple","model_version":"1","outputs":[` + outputs + `]}`
	}
	const out0, out1 = `{"name":"OUTPUT0","datatype":"INT32","shape":[1,2]`, `{"name":"OUTPUT1","datatype":"INT32","shape":[1,2]`
	untouched := func(n int) string { return strings.Repeat("\xff", n) }
	for name, c := range map[string]struct {
		inputs, rest, raw string // raw follows the JSON
		want              string
		out               string
	}{
		"inputs":            {inputs: both, want: answer(out0 + `,"data":[8,10]},` + out1 + `,"data":[-6,-6]}`), out: untouched(32)},
		"one input":         {inputs: in0 + shared("in", 4, 8) + `},` + json1, want: answer(out0 + `,"data":[12,23]},` + out1 + `,"data":[-8,-17]}`), out: untouched(32)},
		"an input as bytes": {inputs: in0 + shared("in", 4, 8) + `},` + in1 + `{"binary_data_size":8}}`, raw: int32s(10, 20), want: answer(out0 + `,"data":[12,23]},` + out1 + `,"data":[-8,-17]}`), out: untouched(32)},
		"an output": {
			inputs: both, rest: `,"outputs":[{"name":"OUTPUT0","parameters":` + shared("out", 4, 28) + `}]`,
			want: answer(out0 + `}`), out: untouched(4) + int32s(8, 10) + untouched(20),
		},
		"an output beside another as bytes": {
			inputs: both, rest: `,"parameters":{"binary_data_output":true},"outputs":[{"name":"OUTPUT1","parameters":{"binary_data":true}},{"name":"OUTPUT0","parameters":` + shared("out", 24, 8) + `}]`,
			want: answer(out0+`},`+out1+`,"parameters":{"binary_data_size":8}}`) + int32s(-6, -6), out: untouched(24) + int32s(8, 10),
		},
		"an output beside classes": {
			inputs: both, rest: `,"outputs":[{"name":"OUTPUT1","parameters":{"classification":1}},{"name":"OUTPUT0","parameters":` + shared("out", 0, 8) + `}]`,
			want: answer(out0 + `},{"name":"OUTPUT1","datatype":"BYTES","shape":[1,1],"data":["-6:0"]}`), out: int32s(8, 10) + untouched(24),
		},
		"an output in the input's place": {
			inputs: both, rest: `,"outputs":[{"name":"OUTPUT0","parameters":` + shared("in", 0, 8) + `}]`,
			want: answer(out0 + `}`), out: untouched(32),
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, []*core.Model{simple(2)})
			json := `{"inputs":[` + c.inputs + `]` + c.rest + `}`
			q := request{path: "/v2/models/simple/infer", body: json + c.raw}
			if c.raw != "" {
				q.header = map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(json))}
			}
			if a := h.do(q); a.Status != 200 || a.Body != c.want {
				t.Errorf("%d %s\nwant %s", a.Status, a.Body, c.want)
			}
			if got := h.get("out"); got != c.out {
				t.Errorf("the file has %q, want %q", got, c.out)
			}
			h.checkMemory(t)
		})
	}
}

func TestTextsInRegions(t *testing.T) {
	h := newHost(t, []*core.Model{echo(tensor.Bytes, 2)})
	h.put("in", "..\x02\x00\x00\x00ab\x00\x00\x00\x00")
	ask := func(size int, outputs string) response {
		return h.do(request{path: "/v2/models/echo/infer", body: `{"inputs":[{"name":"IN","datatype":"BYTES","shape":[2],"parameters":` + shared("in", 2, size) + `}]` + outputs + `}`})
	}
	const in = `{"model_name":"echo","model_version":"1","outputs":[{"name":"OUT","datatype":"BYTES","shape":[2]`
	if a := ask(10, ""); a.Body != in+`,"data":["ab",""]}]}` {
		t.Error(a)
	}
	if a := ask(10, `,"outputs":[{"name":"OUT","parameters":`+shared("out", 0, 32)+`}]`); a.Body != in+`}]}` || !strings.HasPrefix(h.get("out"), "\x02\x00\x00\x00ab\x00\x00\x00\x00\xff") {
		t.Errorf("%v, %q", a, h.get("out"))
	}
	if a := ask(9, ""); a.Status != 400 || !strings.Contains(a.Body, "incomplete string length indicator") {
		t.Error(a)
	}
	h.put("in", "..\xff\xff\xff\xffab\x00\x00\x00\x00") // a length that lies
	if a := ask(10, ""); a.Status != 400 || !strings.Contains(a.Body, "incomplete string data for inference input 'IN', expecting string of length 4294967295 but only 6 bytes available") {
		t.Error(a)
	}
}

func TestRangesThatRequestsMayNotName(t *testing.T) {
	h := newHost(t, []*core.Model{echo(tensor.Int32, -1)})
	in := func(shape, parameters string) string {
		return `{"inputs":[{"name":"IN","datatype":"INT32","shape":[` + shape + `],"parameters":` + parameters + `}]`
	}
	out := func(parameters string) string {
		return in("2", shared("in", 0, 8)) + `,"outputs":[{"name":"OUT","parameters":` + parameters + `}]}`
	}
	for name, c := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"an input of no region":       {in("2", shared("r", 0, 8)) + "}", 404, "Unable to find shared memory region: 'r'"},
		"an input without a size":     {in("2", `{"shared_memory_region":"in"}`) + "}", 400, "Invalid offset + byte size for shared memory region: 'in'"},
		"an input beyond":             {in("2", shared("in", 32, 8)) + "}", 400, "Invalid offset for shared memory region: 'in'"},
		"an input that ends beyond":   {in("2", shared("in", 28, 8)) + "}", 400, "Invalid offset + byte size for shared memory region: 'in'"},
		"an input of another size":    {in("2", shared("in", 0, 16)) + "}", 400, "[request id: <id_unknown>] input byte size mismatch for input 'IN' for model 'echo'. Expected 8, got 16"},
		"an output of no region":      {out(shared("r", 0, 8)), 404, "Unable to find shared memory region: 'r'"},
		"an output without a size":    {out(`{"shared_memory_region":"out"}`), 400, "Invalid offset + byte size for shared memory region: 'out'"},
		"an output beyond":            {out(shared("out", 32, 8)), 400, "Invalid offset for shared memory region: 'out'"},
		"an output that ends beyond":  {out(shared("out", 28, 8)), 400, "Invalid offset + byte size for shared memory region: 'out'"},
		"an output that does not fit": {out(shared("out", 0, 7)), 500, "shared memory size specified with the request for output 'OUT' (7 bytes) should be at least 8 bytes to hold the results"},
	} {
		a := h.do(request{path: "/v2/models/echo/infer", body: c.body})
		if want := `{"error":"` + c.want + `"}`; a.Status != c.status || a.Body != want {
			t.Errorf("%s: %d %s, want %s", name, a.Status, a.Body, want)
		}
		if got := h.get("out"); got != strings.Repeat("\xff", 32) {
			t.Errorf("%s: the file has %q", name, got)
		}
	}
	h.checkMemory(t)
	if len(h.logged) > 0 {
		t.Errorf("logged: %v", h.logged)
	}
}

// A file that shrinks while its region is registered, or while the request is under way,
// costs its client's request alone.
func TestAFileThatShrinksFailsTheRequest(t *testing.T) {
	h := newHost(t, []*core.Model{echo(tensor.Int32, -1)})
	ask := func(body string) response {
		return h.do(request{path: "/v2/models/echo/infer", body: body})
	}
	in := `{"inputs":[{"name":"IN","datatype":"INT32","shape":[8],"parameters":` + shared("in", 0, 32) + `}]`
	both := in + `,"outputs":[{"name":"OUT","parameters":` + shared("out", 0, 32) + `}]}`
	changed := func(name string) string {
		return `{"error":"shared memory region '` + name + `' has changed: its file is shorter than when the region was registered"}`
	}
	h.scheduler.submit = func(*infer.Request) error { return os.Truncate(filepath.Join(h.dir, "out"), 16) }
	if a := ask(both); a.Status != 400 || a.Body != changed("out") {
		t.Error(a)
	}
	if err := os.Truncate(filepath.Join(h.dir, "in"), 31); err != nil {
		t.Fatal(err)
	}
	if a := ask(in + "}"); a.Status != 400 || a.Body != changed("in") {
		t.Error(a)
	}
	h.put("in", int32s(1, 2, 3, 4, 5, 6, 7, 8))
	if a := ask(in + "}"); a.Status != 200 {
		t.Error(a)
	}
	h.checkMemory(t)
}

func TestARegionThatEndsDuringARequestStays(t *testing.T) {
	h := newHost(t, []*core.Model{echo(tensor.Int32, -1)})
	status := func() string {
		return h.do(request{method: "GET", path: "/v2/systemsharedmemory/status"}).Body
	}
	before := status()
	h.scheduler.submit = func(*infer.Request) error {
		if a := h.do(request{path: "/v2/systemsharedmemory/unregister"}); a.Status != 200 {
			t.Error(a)
		}
		if s := status(); s != before {
			t.Errorf("during the request: %s", s)
		}
		return nil
	}
	a := h.do(request{path: "/v2/models/echo/infer", body: `{"inputs":[{"name":"IN","datatype":"INT32","shape":[8],"parameters":` + shared("in", 0, 32) +
		`}],"outputs":[{"name":"OUT","parameters":` + shared("out", 0, 32) + `}]}`})
	if a.Status != 200 || h.get("out") != h.get("in") {
		t.Errorf("%v, %q", a, h.get("out"))
	}
	if s := status(); s != "[]" {
		t.Errorf("after the request: %s", s)
	}
}

// The bytes that a request of few bytes names are charged before they are read.
func TestSharedInputsAreCharged(t *testing.T) {
	const limit = 1 << 20
	budget := memory.NewBudget(limit)
	h := newHost(t, []*core.Model{echo(tensor.Int32, -1)}, func(o *rest.Options) { o.Budget, o.MaxInput = budget, limit })
	if err := os.Truncate(filepath.Join(h.dir, "in"), 1<<40); err != nil { // holes take no memory
		t.Fatal(err)
	}
	h.register("large", `{"key":"/in","byte_size":1099511627776}`)
	for _, c := range []struct {
		bytes, status int
	}{{limit / 2, 200}, {2 * limit, 503}, {1 << 40, 400}} {
		a := h.do(request{path: "/v2/models/echo/infer", body: `{"inputs":[{"name":"IN","datatype":"INT32","shape":[` + strconv.Itoa(c.bytes/4) + `],"parameters":` + shared("large", 0, c.bytes) +
			`}],"outputs":[{"name":"OUT","parameters":` + shared("large", 0, c.bytes) + `}]}`})
		if a.Status != c.status {
			t.Errorf("%d bytes: %v", c.bytes, a)
		}
		if n := budget.Reserved(); n != 0 {
			t.Errorf("%d bytes: %d bytes are charged at the end", c.bytes, n)
		}
	}
	h.checkMemory(t)
}

// FuzzRegistration registers any document: there is a response in JSON, and what it
// registers is listed.
func FuzzRegistration(f *testing.F) {
	for _, body := range []string{
		`{"key":"/in","byte_size":8}`, `{"key":"/in","offset":18446744073709551615,"byte_size":2}`, `{"key":"../in","byte_size":1e3}`, `{"key":null}`, `[]`, `{"key"`,
		`{"raw_handle":{"b64":"` + strings.Repeat("A", 86) + `=="},"device_id":-1,"byte_size":8}`, `{"raw_handle":"x"}`, "\ufeff{}", `{"key":"\u0000","byte_size":0}`,
	} {
		f.Add([]byte(body))
	}
	h := newHost(f, nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []string{"system", "cuda"} {
			a := h.do(request{path: "/v2/" + kind + "sharedmemory/region/r/register", body: string(body)})
			if a.Body != "" && !json.Valid([]byte(a.Body)) || (a.Status == 200) != (a.Body == "") || len(h.logged) > 0 {
				t.Fatalf("%s %q: %v, %v", kind, body, a, h.logged)
			}
			listed := h.do(request{method: "GET", path: "/v2/" + kind + "sharedmemory/region/r/status"})
			if (listed.Status == 200) != (a.Status == 200) || listed.Status == 200 && !bytes.Contains(body, []byte("byte_size")) {
				t.Errorf("%s %q: %v, and then %v", kind, body, a, listed)
			}
			h.do(request{path: "/v2/" + kind + "sharedmemory/region/r/unregister"})
		}
	})
}
