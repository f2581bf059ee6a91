package rest

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// route is one endpoint.
type route struct {
	method, pattern string
	api             core.API
	// serve, or respond if the caller matters, handles a call or returns the error to respond with. An
	// inference has infer instead, which takes the call through its stages.
	serve   func(http.ResponseWriter, *http.Request) error
	respond func(*call) error
	infer   func(*call) error

	allow    string // the allowed methods, for a 405
	segments []string
}

// table lists the endpoints, the most frequent first. If two match a path, the first one wins.
func (s *server) table() []route {
	const get, post = http.MethodGet, http.MethodPost
	table := append([]route{
		{method: post, pattern: "/v2/models/{model}/infer", api: core.InferenceAPI, infer: s.infer},
		{method: post, pattern: "/v2/models/{model}/versions/{version}/infer", api: core.InferenceAPI, infer: s.infer},
		{method: post, pattern: "/v2/models/{model}/generate", api: core.InferenceAPI, infer: s.generate},
		{method: post, pattern: "/v2/models/{model}/versions/{version}/generate", api: core.InferenceAPI, infer: s.generate},
		{method: post, pattern: "/v2/models/{model}/generate_stream", api: core.InferenceAPI, infer: s.generateStream},
		{method: post, pattern: "/v2/models/{model}/versions/{version}/generate_stream", api: core.InferenceAPI, infer: s.generateStream},
		{method: get, pattern: "/v2", api: core.MetadataAPI, serve: s.metadata},
		{method: get, pattern: "/v2/health/live", api: core.HealthAPI, serve: s.live},
		{method: get, pattern: "/v2/health/ready", api: core.HealthAPI, serve: s.ready},
		// As in Triton, a model named "stats" therefore has no metadata here.
		{method: get, pattern: "/v2/models/stats", api: core.StatisticsAPI, respond: s.statistics},
		{method: get, pattern: "/v2/models/{model}", api: core.MetadataAPI, serve: s.modelMetadata},
		{method: get, pattern: "/v2/models/{model}/versions/{version}", api: core.MetadataAPI, serve: s.modelMetadata},
		{method: get, pattern: "/v2/models/{model}/ready", api: core.HealthAPI, serve: s.modelReady},
		{method: get, pattern: "/v2/models/{model}/versions/{version}/ready", api: core.HealthAPI, serve: s.modelReady},
		{method: get, pattern: "/v2/models/{model}/config", api: core.ModelConfigAPI, serve: s.modelConfig},
		{method: get, pattern: "/v2/models/{model}/versions/{version}/config", api: core.ModelConfigAPI, serve: s.modelConfig},
		{method: get, pattern: "/v2/models/{model}/stats", api: core.StatisticsAPI, respond: s.modelStatistics},
		{method: get, pattern: "/v2/models/{model}/versions/{version}/stats", api: core.StatisticsAPI, respond: s.modelStatistics},
		{method: get, pattern: "/nereid/requests/{request}", api: core.ExplainAPI, respond: s.explain},
		{method: post, pattern: "/nereid/recordings", api: core.RecordingAPI, respond: s.record},
		{method: get, pattern: "/v2/logging", api: core.LoggingAPI, serve: s.logSettings},
		{method: post, pattern: "/v2/logging", api: core.LoggingAPI, respond: s.changeLog},
		{method: post, pattern: "/v2/repository/index", api: core.RepositoryAPI, respond: s.index},
		{method: post, pattern: "/v2/repository/{repository}/index", api: core.RepositoryAPI, respond: s.index},
		{method: post, pattern: "/v2/repository/models/{model}/load", api: core.RepositoryAPI, serve: s.load},
		{method: post, pattern: "/v2/repository/{repository}/models/{model}/load", api: core.RepositoryAPI, serve: s.load},
		{method: post, pattern: "/v2/repository/models/{model}/unload", api: core.RepositoryAPI, respond: s.unload},
		{method: post, pattern: "/v2/repository/{repository}/models/{model}/unload", api: core.RepositoryAPI, respond: s.unload},
	}, s.sharedMemoryRoutes()...)
	methods := make(map[string][]string) // by pattern
	for i := range table {
		r := &table[i]
		r.segments = strings.Split(r.pattern, "/")[1:]
		methods[r.pattern] = append(methods[r.pattern], r.method)
		if r.method == get {
			methods[r.pattern] = append(methods[r.pattern], http.MethodHead)
		}
	}
	for i := range table {
		table[i].allow = strings.Join(methods[table[i].pattern], ", ")
	}
	return table
}

// match returns the endpoint for a path and a method, and sets the path's parameters. If only other methods
// match it returns one of those endpoints, and nil if the path is unknown. The path is matched before it is
// percent-decoded, so that an escaped slash is part of a name and not a separator.
func (s *server) match(method, path string, p *params) *route {
	var other *route
	for i := range s.routes {
		r := &s.routes[i]
		switch {
		case other != nil && (r.pattern != other.pattern || !r.takes(method)):
		case !r.match(path, p):
		case r.takes(method):
			return r
		default:
			other = r
		}
	}
	return other
}

// takes reports whether the endpoint supports the method.
func (r *route) takes(method string) bool {
	return method == r.method || method == http.MethodHead && r.method == http.MethodGet
}

func (r *route) match(path string, p *params) bool {
	p.count = 0
	for _, segment := range r.segments {
		if path == "" || path[0] != '/' {
			return false
		}
		path = path[1:]
		end := strings.IndexByte(path, '/')
		if end < 0 {
			end = len(path)
		}
		switch value := path[:end]; {
		case segment[0] != '{':
			if value != segment {
				return false
			}
		case value == "":
			return false
		default:
			p.names[p.count], p.values[p.count] = segment[1:len(segment)-1], value
			p.count++
		}
		path = path[end:]
	}
	return path == ""
}

// params are the parameters of a pattern and their values, still percent-encoded.
type params struct {
	names, values [2]string
	count         int
}

// keep makes the values available to handlers through [http.Request.PathValue].
func (p *params) keep(r *http.Request) {
	for i := range p.count {
		r.SetPathValue(p.names[i], p.values[i])
	}
}

// target returns the model and version that the path names.
func (p *params) target() (model, version string, err error) {
	for i := range p.count {
		switch p.names[i] {
		case "model":
			model = p.values[i]
		case "version":
			version = p.values[i]
		}
	}
	return targetOf(model, version)
}

// target returns the model and version that the path of a request names.
func target(r *http.Request) (model, version string, err error) {
	return targetOf(r.PathValue("model"), r.PathValue("version"))
}

// targetOf decodes the model and checks the version, which is empty if the path names none.
func targetOf(model, version string) (string, string, error) {
	model, err := url.PathUnescape(model)
	if err != nil || model == "" {
		return "", "", notFound()
	}
	if strings.IndexFunc(version, func(c rune) bool { return c < '0' || c > '9' }) >= 0 {
		return model, version, notFound()
	}
	return model, version, nil
}
