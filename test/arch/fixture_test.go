package arch

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// source is a Go file of the package that dir names, with its imports; a name
// of this repository starts with a dot.
func source(name string, imports ...string) string {
	var b strings.Builder
	b.WriteString("// Package " + name + " is a fixture.\npackage " + name + "\n")
	for _, target := range imports {
		if local, ok := strings.CutPrefix(target, "./"); ok {
			target = Prefix + "/" + local
		}
		b.WriteString("import _ \"" + target + "\"\n")
	}
	return b.String()
}

const (
	goodModule = "module " + Prefix + "/libs\n\ngo 1.26.0\n\nrequire " + Prefix + "/proto v0.0.0\n\nreplace " + Prefix + "/proto => ../proto\n"
	goodWork   = "go 1.26.0\n\nuse ./libs\n"
)

// fixture is a small repository that breaks one rule, or none.
type fixture struct {
	name  string
	files map[string]string
	// want names the rules broken, in order of place.
	want []string
}

func fixtures() []fixture {
	return []fixture{
		{"a library of the bottom", map[string]string{"libs/errs/a.go": source("errs", "fmt")}, nil},
		{"proto imports a library", map[string]string{"proto/a.go": source("proto", "./libs/errs")}, []string{"proto is the bottom"}},
		{"a library imports a service", map[string]string{"libs/bus/a.go": source("bus", "./services/gateway")}, []string{"libs know no service"}},
		{"a library's test imports a service", map[string]string{"libs/bus/a_test.go": source("bus", "./services/gateway")}, []string{"libs know no service"}},
		{"a service imports a program", map[string]string{"services/worker/a.go": source("worker", "./cmd/nereid")}, []string{"services know no program"}},
		{"a program imports a test", map[string]string{"cmd/nereid/a.go": source("main", "./test/e2e")}, []string{"programs know no test"}},
		{"a program imports the test kit", map[string]string{"cmd/nereid/a.go": source("main", "./libs/testkit/onnxmodel")}, []string{"test kit is for tests"}},
		{"a test imports the test kit", map[string]string{"cmd/nereid/a_test.go": source("main", "./libs/testkit/onnxmodel")}, nil},
		{"a service imports another", map[string]string{"services/gateway/a.go": source("gateway", "./services/worker")}, []string{"no service imports another"}},
		{"a program imports two services", map[string]string{"cmd/nereid/a.go": source("main", "./services/worker", "./services/gateway")}, nil},
		{"the gateway's core imports HTTP", map[string]string{"services/gateway/internal/core/a.go": source("core", "net/http")}, []string{"core knows no transport"}},
		{"the gateway's core imports its transport", map[string]string{"services/gateway/internal/core/a.go": source("core", "./services/gateway/internal/rpc/wire")}, []string{"core knows no transport"}},
		{"the pending table imports NATS", map[string]string{"services/gateway/internal/requests/a.go": source("pending", "github.com/nats-io/nats.go")}, []string{"core knows no bus"}},
		{"a core logs", map[string]string{"services/scheduler/core/a.go": source("core", "go.uber.org/zap/zapcore")}, []string{"core neither logs nor measures"}},
		{"a core counts", map[string]string{"libs/tensor/a.go": source("tensor", "github.com/prometheus/client_golang/prometheus")}, []string{"core neither logs nor measures"}},
		{"a core reads files", map[string]string{"services/scheduler/core/a.go": source("core", "os")}, []string{"core opens nothing"}},
		{"the scheduler's core locks", map[string]string{"services/scheduler/core/a.go": source("core", "sync/atomic")}, []string{"cores are pure"}},
		{"the scheduler's core reads the clock", map[string]string{"services/scheduler/core/a.go": source("core", "time") + "var x = time.Now()\n"}, []string{"cores are pure"}},
		{"the scheduler's core starts a goroutine", map[string]string{"services/scheduler/core/a.go": source("core") + "func f() { go f() }\n"}, []string{"cores are pure"}},
		{"the scheduler's driver starts a goroutine", map[string]string{"services/scheduler/internal/dispatch/a.go": source("dispatch", "sync") + "func f() { go f() }\n"}, nil},
		{"one transport imports another", map[string]string{"services/gateway/internal/rest/a.go": source("rest", "./services/gateway/internal/rpc/wire")}, []string{"transports know not each other"}},
		{"a core takes a generated message", map[string]string{"services/scheduler/core/a.go": source("core", "./proto/inference/v2")}, []string{"protobuf stays at the edges"}},
		{"a transport takes a generated message", map[string]string{"services/gateway/internal/rpc/a.go": source("rpc", "./proto/inference/v2")}, nil},
		{"cgo outside its fence", map[string]string{"services/worker/a.go": source("worker", "C")}, []string{"cgo and unsafe are fenced"}},
		{"cgo inside its fence", map[string]string{"services/worker/internal/backend/onnxruntime/a.go": source("onnxruntime", "C")}, nil},
		{"unsafe in a test", map[string]string{"services/worker/a_test.go": source("worker", "unsafe")}, []string{"cgo and unsafe are fenced"}},
		{"unsafe where numbers are viewed as bytes", map[string]string{"libs/tensor/cast.go": source("tensor", "unsafe")}, nil},
		{"an assertion library", map[string]string{"libs/errs/a_test.go": source("errs", "github.com/stretchr/testify/require")}, []string{"no assertion library"}},
		{"generated mocks", map[string]string{"libs/errs/a_test.go": source("errs", "go.uber.org/mock/gomock")}, []string{"no generated mocks"}},
		{"another logger", map[string]string{"libs/bus/a.go": source("bus", "log/slog")}, []string{"one logger"}},
		{"another protobuf", map[string]string{"libs/bus/a.go": source("bus", "github.com/gogo/protobuf/proto")}, []string{"one protobuf runtime"}},
		{"another yaml", map[string]string{"libs/config/a.go": source("config", "gopkg.in/yaml.v3")}, []string{"one yaml"}},
		{"other errors", map[string]string{"libs/config/a.go": source("config", "github.com/pkg/errors")}, []string{"errors of the standard library"}},
		{"a library imports one above it", map[string]string{"libs/errs/a.go": source("errs", "./libs/obs")}, []string{"libs have levels"}},
		{"a library that has no level", map[string]string{"libs/novel/a.go": source("novel")}, []string{"libs have levels"}},
		{"a package without a name", map[string]string{"libs/bus/utils/a.go": source("utils")}, []string{"packages have meaning"}},
		{"a package without a comment", map[string]string{"libs/bus/a.go": "package bus\n"}, []string{"packages say what they are for"}},
		{"a long file", map[string]string{"libs/bus/a.go": source("bus") + strings.Repeat("// more\n", longest)}, []string{"files stay short"}},
		{"a long generated file", map[string]string{"libs/bus/a.go": "// Code generated by a fixture. DO NOT EDIT.\n\n" + source("bus") + strings.Repeat("// more\n", longest)}, nil},
		{"a path of one machine", map[string]string{"README.md": "look into /home/someone\n"}, []string{"no machine paths"}},
		{"a registry's host", map[string]string{"Makefile": "GOPROXY=https://proxy.golang.org\n"}, []string{"no registry hosts"}},
		{"a module in order", map[string]string{"go.work": goodWork, "libs/go.mod": goodModule}, nil},
		{"a module that the workspace leaves out", map[string]string{"go.work": "go 1.26.0\n", "libs/go.mod": goodModule}, []string{"modules stand alone"}},
		{"a module of another name", map[string]string{"go.work": goodWork, "libs/go.mod": strings.Replace(goodModule, "/libs", "/lib", 1)}, []string{"modules stand alone"}},
		{"a module of another Go", map[string]string{"go.work": goodWork, "libs/go.mod": strings.Replace(goodModule, "1.26.0", "1.25", 1)}, []string{"modules stand alone"}},
		{"a module that misses a sibling", map[string]string{"go.work": goodWork, "libs/go.mod": strings.Replace(goodModule, "=> ../proto", "=> ../protos", 1)}, []string{"modules stand alone"}},
		{"a package that is on the map", map[string]string{"libs/bus/a.go": source("bus"), pageOfPackages: "| `libs/bus` | the bus |\n"}, nil},
		{"a package that is not on the map", map[string]string{"libs/bus/a.go": source("bus"), pageOfPackages: "# Architecture\n"}, []string{"the map shows the land"}},
		{"a package on the map alone", map[string]string{pageOfPackages: "| `libs/bus` | the bus |\n"}, []string{"the map shows the land"}},
		{"a bound with its test", map[string]string{pageOfBounds: "| what | bound | test |\n|---|---|---|\n| size | 1 | `errs.TestSize` |\n", "libs/errs/a_test.go": source("errs") + "func TestSize() {}\n"}, nil},
		{"a bound without a test", map[string]string{pageOfBounds: "| what | bound | test |\n|---|---|---|\n| size | 1 | none |\n"}, []string{"bounds are attacked"}},
		{"a bound whose test is gone", map[string]string{pageOfBounds: "| what | test |\n|---|---|\n| size | `errs.TestSize` |\n", "libs/errs/a.go": source("errs") + "func TestSize() {}\n"}, []string{"bounds are attacked"}},
		{"a table without tests", map[string]string{pageOfBounds: "| what | test |\n|---|---|\n\n| port | who |\n|---|---|\n| 1 | all |\n"}, nil},
		{"a server for other services", map[string]string{"services/worker/command/a.go": source("command") + "var s = grpc.NewServer(link.ServerOptions(nil, nil)...)\n"}, nil},
		{"a server that authorizes nobody", map[string]string{"services/worker/command/a.go": source("command") + "var s = grpc.NewServer()\n"}, []string{"no door beside the lock"}},
		{"a server with options beside", map[string]string{"services/worker/command/a.go": source("command") + "var s = grpc.NewServer(append(link.ServerOptions(nil, nil), more)...)\n"}, []string{"no door beside the lock"}},
		{"an HTTP server of its own", map[string]string{"services/worker/a.go": source("worker") + "var s = &http.Server{}\n"}, []string{"no door beside the lock"}},
		{"a handler of every server", map[string]string{"services/worker/a.go": source("worker") + "func f() { http.HandleFunc(\"/debug\", nil) }\n"}, []string{"no door beside the lock"}},
		{"profiles for everybody", map[string]string{"libs/process/a.go": source("process", "net/http/pprof")}, []string{"no door beside the lock"}},
		{"a server of a test", map[string]string{"services/worker/a_test.go": source("worker") + "var s = grpc.NewServer()\n"}, nil},
		{"test data is not looked at", map[string]string{"libs/bus/testdata/a.go": source("data", "unsafe")}, nil},
	}
}

func TestEachRuleCanFail(t *testing.T) {
	for _, tt := range fixtures() {
		t.Run(tt.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for name, content := range tt.files {
				root[name] = &fstest.MapFile{Data: []byte(content)}
			}
			found, err := Check(root)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, violation := range found {
				got = append(got, violation.Rule)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("rules broken (-want +got):\n%s\n%v", diff, found)
			}
		})
	}
}

func TestEveryBanHasAReasonAndAFixture(t *testing.T) {
	shown := map[string]bool{}
	for _, f := range fixtures() {
		for _, rule := range f.want {
			shown[rule] = true
		}
	}
	for _, b := range bans() {
		if b.Reason == "" || len(b.To) == 0 || len(b.From) == 0 {
			t.Errorf("ban %q lacks a reason, a from or a to", b.Name)
		}
		if !shown[b.Name] {
			t.Errorf("no fixture shows that ban %q can fail", b.Name)
		}
	}
}

func TestBrokenSourceIsAnError(t *testing.T) {
	_, err := Check(fstest.MapFS{"libs/bus/a.go": &fstest.MapFile{Data: []byte("package")}})
	if err == nil {
		t.Error("a file that does not parse passed")
	}
}

func TestPatterns(t *testing.T) {
	tests := []struct {
		pattern string
		matches []string
		differs []string
	}{
		{"net", []string{"net"}, []string{"net/http", "network"}},
		{"net/...", []string{"net", "net/http", "net/http/httptest"}, []string{"network"}},
		{"services/*/internal/rest", []string{"services/gateway/internal/rest"}, []string{"services/gateway/internal/rest/json", "services/internal/rest"}},
		{"*_gen", []string{"reasons_gen", "_gen"}, []string{"gen", "reasons_gen/x"}},
		{"...", []string{"", "anything/at/all"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.pattern, func(t *testing.T) {
			for _, path := range slices.Concat(tt.matches, tt.differs) {
				if got, want := match(tt.pattern, path), slices.Contains(tt.matches, path); got != want {
					t.Errorf("match(%q, %q) = %t, want %t", tt.pattern, path, got, want)
				}
			}
		})
	}
}
