package arch

import "slices"

// ban forbids packages that match From, but not Except, to import what matches
// To. Patterns name directories of this repository or foreign import paths.
type ban struct {
	Name   string
	From   []string
	Except []string
	To     []string
	// Tests says that test files are bound too.
	Tests  bool
	Reason string
}

func bans() []ban {
	return slices.Concat(directionBans(), coreBans(), edgeBans(), foreignBans())
}

func directionBans() []ban {
	return []ban{
		{
			Name: "proto is the bottom", From: []string{"proto/...", "python/..."}, Tests: true,
			To:     []string{"libs/...", "services/...", "cmd/...", "test/..."},
			Reason: "imports point one way, cmd and test to services to libs to proto, so that each layer builds and is read without those above it",
		},
		{
			Name: "libs know no service", From: []string{"libs/..."}, Tests: true,
			To:     []string{"services/...", "cmd/...", "test/..."},
			Reason: "a library that knows a service serves that one alone; let the service pass in what is needed",
		},
		{
			Name: "services know no program", From: []string{"services/..."}, Tests: true,
			To:     []string{"cmd/...", "test/..."},
			Reason: "a service is wired by programs, it does not reach for them",
		},
		{
			Name: "programs know no test", From: []string{"cmd/..."}, Tests: true,
			To:     []string{"test/..."},
			Reason: "what ships must not need what only checks it",
		},
		{
			Name: "test kit is for tests", From: []string{"..."}, Except: []string{"libs/testkit/...", "test/..."},
			To:     []string{"libs/testkit/..."},
			Reason: "fakes and fixtures must not reach a program",
		},
	}
}

func coreBans() []ban {
	cores := []string{
		"services/gateway/internal/classify", "services/gateway/internal/core", "services/gateway/internal/jsoninfer", "services/gateway/internal/path", "services/gateway/internal/requests",
		"services/scheduler/core",
		"services/registry/core", "services/registry/core/place", "services/registry/core/publish", "services/registry/core/catalog", "services/registry/internal/status", "services/registry/core/rollout",
		"services/worker/internal/backend",
		"libs/infer", "libs/tensor", "libs/modelconfig", "libs/mono", "libs/invariant", "libs/resources",
	}
	return []ban{
		{
			Name: "core knows no transport", From: cores,
			To: []string{
				"net", "net/http/...", "google.golang.org/grpc/...",
				"libs/serve/...", "services/*/internal/rest/...", "services/*/internal/rpc/...", "services/*/internal/sse/...",
			},
			Reason: "transports adapt to the core; a core that knows one cannot be tested, simulated or replayed without it",
		},
		{
			Name: "core knows no bus", From: cores,
			To:     []string{"github.com/nats-io/...", "libs/bus/..."},
			Reason: "state reaches the core as values; where they came from is the watcher's affair",
		},
		{
			Name: "core neither logs nor measures", From: cores,
			To:     []string{"log/...", "go.uber.org/zap/...", "github.com/prometheus/...", "libs/obs/...", "go.opentelemetry.io/..."},
			Reason: "the core returns what happened; its driver logs and counts it, once",
		},
		{
			Name: "core opens nothing", From: cores, Except: []string{"libs/invariant", "libs/modelconfig"},
			To:     []string{"os/...", "io/ioutil", "syscall"},
			Reason: "a core that reads files or the environment gives different answers to the same events",
		},
		{
			Name: "cores are pure", From: []string{"services/scheduler/core", "services/registry/core/..."}, Tests: false,
			To:     []string{"sync/...", "context", "math/rand/...", "runtime/..."},
			Reason: "it is one state machine on one goroutine: events and now go in, actions come out; locks and chance have no place in it",
		},
	}
}

func edgeBans() []ban {
	transports := []string{"rest", "rpc", "sse"}
	var found []ban
	for _, one := range transports {
		var others []string
		for _, other := range transports {
			if other != one {
				others = append(others, "services/*/internal/"+other+"/...")
			}
		}
		found = append(found, ban{
			Name: "transports know not each other", From: []string{"services/*/internal/" + one + "/..."},
			To: others, Tests: true,
			Reason: "what two transports share belongs to the core, else one protocol's change breaks the other",
		})
	}
	return append(found, ban{
		Name: "protobuf stays at the edges",
		From: []string{"..."},
		Except: []string{
			"proto/...", "cmd/...", "test/...",
			"libs/bus/...", "libs/control", "libs/plane/...", "libs/client", "libs/diagnostics", "libs/modelconfig/...", "libs/onnxheader", "libs/protoscan", "libs/recording", "libs/state", "libs/testkit/...",
			"services/*", "services/*/internal/rpc/...", "services/*/internal/view/...",
			"services/gateway/internal/record", "services/worker/internal/gateways", "services/worker/internal/backend/onnxruntime",
			"services/registry/core", "services/registry/core/publish", "services/registry/core/catalog", "services/registry/internal/status", "services/registry/core/rollout",
		},
		To:     []string{"proto/...", "google.golang.org/protobuf/...", "github.com/golang/protobuf/..."},
		Reason: "generated types belong to a wire or a bucket; inside, the plain types of libs/infer and libs/modelconfig are used, so a message can change without the core",
	}, ban{
		Name:   "cgo and unsafe are fenced",
		From:   []string{"..."},
		Except: []string{"services/worker/internal/backend/onnxruntime/...", "services/worker/internal/device/...", "services/worker/internal/confine", "libs/shm/..."},
		To:     []string{"C", "unsafe"}, Tests: true,
		Reason: "memory that Go does not check is kept in few places, which are reviewed as such: these, and libs/tensor/cast.go",
	})
}

func foreignBans() []ban {
	everywhere := []string{"..."}
	return []ban{
		{
			Name: "no assertion library", From: everywhere, Tests: true,
			To:     []string{"github.com/stretchr/testify/...", "gotest.tools/...", "github.com/onsi/..."},
			Reason: "tests compare with go-cmp and print got and want; an assertion language hides the comparison",
		},
		{
			Name: "no generated mocks", From: everywhere, Tests: true,
			To:     []string{"go.uber.org/mock/...", "github.com/golang/mock/...", "github.com/vektra/mockery/..."},
			Reason: "a fake is a small real implementation; a mock checks calls, not results",
		},
		{
			Name: "one logger", From: everywhere, Except: []string{"proto/internal/gen", "libs/*/internal/gen", "services/*/internal/*/internal/gen"},
			To:     []string{"log", "log/slog/...", "github.com/sirupsen/logrus/...", "github.com/rs/zerolog/..."},
			Reason: "logs are zap with the field names of libs/obs, so that one query fits every service",
		},
		{
			Name: "no door beside the lock", From: []string{"libs/...", "services/...", "cmd/..."},
			To:     []string{"net/http/pprof", "expvar"},
			Reason: "they open paths on every HTTP server of the process, which nobody authorizes",
		},
		{
			Name: "one protobuf runtime", From: everywhere, Tests: true,
			To:     []string{"github.com/golang/protobuf/...", "github.com/gogo/protobuf/..."},
			Reason: "google.golang.org/protobuf is the maintained one; two runtimes register the same message twice",
		},
		{
			Name: "one yaml", From: everywhere, Tests: true,
			To:     []string{"gopkg.in/yaml.v2", "gopkg.in/yaml.v3", "go.yaml.in/yaml/v4/...", "github.com/ghodss/yaml", "sigs.k8s.io/yaml"},
			Reason: "go.yaml.in/yaml/v3 is maintained, and linked with CEL anyway",
		},
		{
			Name: "errors of the standard library", From: everywhere, Tests: true,
			To:     []string{"github.com/pkg/errors", "github.com/cockroachdb/errors/..."},
			Reason: "libs/errs is the one error type, wrapped with %w",
		},
	}
}
