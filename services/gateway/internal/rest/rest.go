// Package rest is the gateway's HTTP front end: the inference protocol's
// version 2 with the extensions and the answers of Triton's HTTP endpoint.
//
// It turns requests into calls of an [Engine] and errors into statuses by
// their reason. It adds no goroutine of its own; a client that goes away
// cancels its request through the context that net/http gives.
//
// What Triton does and this package does as well: paths match as a whole,
// without regard for a trailing slash; a wrong method is 405 and an unknown
// path 404, both with a JSON body. Endpoints that this server does not have
// are unknown paths. Beyond Triton it percent-decodes model names, answers
// HEAD where it answers GET, names the methods in Allow, and adds a reason and
// a request id to the body of an error.
package rest

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Engine is what the front end needs of the gateway. [core.Gateway] is one.
// Its methods are safe for concurrent use.
type Engine interface {
	Live() bool
	Ready() bool
	ModelReady(model, version string) (bool, error)
	Snapshot() *core.Snapshot
	Server() core.ServerInfo
	Metadata(model, version string) (core.Metadata, error)
	ModelConfig(model, version string) (*modelconfig.Config, error)
	Statistics(ctx context.Context, model, version string) ([]core.ModelStatistics, error)
	Index(readyOnly bool) []core.IndexEntry
	LoadModel(context.Context, core.LoadRequest) error
	UnloadModel(ctx context.Context, model string, dependents bool) error
	// Pool is where the memory of tensors comes from.
	Pool() *tensor.Pool
	NewRequest(*core.Version) *infer.Request
	// Infer takes the request over in every case. The caller releases the
	// response, which is one of the version returned.
	Infer(context.Context, *core.Version, *infer.Request) (*infer.Response, *core.Version, error)
}

var _ Engine = (*core.Gateway)(nil)

// Options adjust the front end. The zero value stands for the defaults.
type Options struct {
	// MaxInput is the most bytes of a request's JSON, of a tensor in it, of a
	// raw input and of a decompressed body: Triton's --http-max-input-size.
	// 64 MiB if 0.
	MaxInput int64
	// MaxBody is the most bytes of a whole body with binary tensors. It bounds
	// the memory of one request and is at least MaxInput. 2 GiB if 0.
	MaxBody int64
	// Patience is how long a body, or the client's taking of an answer, may
	// make no progress. A minute if 0.
	Patience time.Duration
	// Restricted are the APIs that need a header; nil restricts none.
	Restricted core.Restrictions
	// Budget bounds the bytes of all requests together. It may be nil.
	Budget *core.Budget
	// Answered is told how long the answer of an inference took to encode and
	// write, and Failed why a call is answered with an error. They may be nil.
	Answered func(time.Duration)
	Failed   func(errs.Reason)
	// Log gets the errors whose text callers do not see. It may be nil.
	Log func(error)
}

const (
	defaultMaxInput = 64 << 20
	defaultMaxBody  = 2 << 30
)

// New makes the handler of the protocol's paths. Everything else is 404.
func New(engine Engine, o Options) http.Handler {
	if o.MaxInput == 0 {
		o.MaxInput = defaultMaxInput
	}
	if o.MaxBody == 0 {
		o.MaxBody = defaultMaxBody
	}
	o.MaxBody = o.Budget.Most(max(o.MaxBody, o.MaxInput))
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Log == nil {
		o.Log = func(error) {}
	}
	if o.Answered == nil {
		o.Answered = func(time.Duration) {}
	}
	if o.Failed == nil {
		o.Failed = func(errs.Reason) {}
	}
	s := &server{engine: engine, options: o}
	router := chi.NewRouter()
	router.Use(byPath)
	for _, r := range s.routes() {
		router.HandleFunc(r.pattern, s.only(r))
	}
	router.NotFound(func(w http.ResponseWriter, _ *http.Request) { s.fail(w, notFound(), "") })
	return s.patient(s.direct(router))
}

type server struct {
	engine  Engine
	options Options
	calls   sync.Pool // of *call
}

type route struct {
	method, pattern string
	api             core.API
	// serve answers, or returns the error to answer with.
	serve func(http.ResponseWriter, *http.Request) error
}

func (s *server) routes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return append(sharedMemoryRoutes(), []route{
		{get, "/v2", core.MetadataAPI, s.metadata},
		{get, "/v2/health/live", core.HealthAPI, s.live},
		{get, "/v2/health/ready", core.HealthAPI, s.ready},
		// So a model called "stats" has no metadata here, as with Triton.
		{get, "/v2/models/stats", core.StatisticsAPI, s.statistics},
		{get, "/v2/models/{model}", core.MetadataAPI, s.modelMetadata},
		{get, "/v2/models/{model}/versions/{version}", core.MetadataAPI, s.modelMetadata},
		{get, "/v2/models/{model}/ready", core.HealthAPI, s.modelReady},
		{get, "/v2/models/{model}/versions/{version}/ready", core.HealthAPI, s.modelReady},
		{get, "/v2/models/{model}/config", core.ModelConfigAPI, s.modelConfig},
		{get, "/v2/models/{model}/versions/{version}/config", core.ModelConfigAPI, s.modelConfig},
		{get, "/v2/models/{model}/stats", core.StatisticsAPI, s.modelStatistics},
		{get, "/v2/models/{model}/versions/{version}/stats", core.StatisticsAPI, s.modelStatistics},
		{post, "/v2/models/{model}/infer", core.InferenceAPI, s.infer},
		{post, "/v2/models/{model}/versions/{version}/infer", core.InferenceAPI, s.infer},
		{post, "/v2/repository/index", core.RepositoryAPI, s.index},
		{post, "/v2/repository/{repository}/index", core.RepositoryAPI, s.index},
		{post, "/v2/repository/models/{model}/load", core.RepositoryAPI, s.load},
		{post, "/v2/repository/{repository}/models/{model}/load", core.RepositoryAPI, s.load},
		{post, "/v2/repository/models/{model}/unload", core.RepositoryAPI, s.unload},
		{post, "/v2/repository/{repository}/models/{model}/unload", core.RepositoryAPI, s.unload},
	}...)
}

// only refuses other methods than the route's.
func (s *server) only(r route) http.HandlerFunc {
	allowed := []string{r.method}
	if r.method == http.MethodGet {
		allowed = append(allowed, http.MethodHead)
	}
	allow := strings.Join(allowed, ", ")
	return func(w http.ResponseWriter, q *http.Request) {
		if !slices.Contains(allowed, q.Method) {
			s.refuseMethod(w, allow)
			return
		}
		if err := s.allow(q, r.api); err != nil {
			s.fail(w, err, "")
			return
		}
		if err := r.serve(w, q); err != nil {
			s.fail(w, err, "")
		}
	}
}

// allow refuses a caller without the header that the API needs.
func (s *server) allow(r *http.Request, api core.API) error {
	secret, restricted := s.options.Restricted[api]
	if !restricted || secret.Matches(r.Header.Get(secret.Header)) {
		return nil
	}
	return errs.New(errs.APIRestricted, "This API is restricted, expecting header '%s'", secret.Header)
}

func (s *server) refuseMethod(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	s.fail(w, errs.New(errs.MethodNotAllowed, "Method Not Allowed"), "")
}

func notFound() error { return errs.New(errs.PathNotFound, "Not Found") }

// byPath makes the router match the path before percent-decoding, so that an
// escaped slash is part of a name and not a border, and without regard for the
// method, of which the router does not know every one that clients may send.
func byPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		route := chi.RouteContext(r.Context())
		route.RoutePath, route.RouteMethod = r.URL.EscapedPath(), http.MethodGet
		next.ServeHTTP(w, r)
	})
}

// target returns the model and version that the path names; the version is
// empty if it names none.
func target(r *http.Request) (model, version string, err error) {
	params := &chi.RouteContext(r.Context()).URLParams
	for i, key := range params.Keys {
		switch key {
		case "model":
			model = params.Values[i]
		case "version":
			if version = params.Values[i]; !decimal(version) {
				return "", "", notFound()
			}
		}
	}
	model, err = url.PathUnescape(model)
	if err != nil || model == "" {
		return "", "", notFound()
	}
	return model, version, nil
}

func decimal(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}
