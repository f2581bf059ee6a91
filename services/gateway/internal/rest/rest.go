// Package rest is the gateway's HTTP front end: version 2 of the inference protocol, with the extensions and
// responses of Triton's HTTP endpoint.
//
// It passes each request as a call to the gateway's [path.Path], and maps errors to statuses by their reason.
// It starts no goroutines of its own. When a client disconnects, the context from net/http cancels its request.
//
// As in Triton, paths must match exactly, without a trailing slash. A wrong method gives 405 and an unknown
// path 404, both with a JSON body; endpoints that this server lacks are unknown paths. Unlike Triton it
// percent-decodes model names, responds to HEAD wherever it responds to GET, lists the methods in Allow, and
// reports an error's reason and the request's id in headers.
package rest

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/recording"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
	"github.com/nereid-serving/nereid/services/gateway/internal/record"
)

// Options configure the front end. The zero value selects the defaults.
type Options struct {
	path.Options
	// MaxInput is the maximum size in bytes of a request's JSON, of a tensor in it, of a raw input and of a
	// decompressed body: Triton's --http-max-input-size. 0 means 64 MiB.
	MaxInput int64
	// MaxBody is the maximum size in bytes of a whole body with binary tensors. It bounds the memory of one
	// request and is at least MaxInput. 0 means 2 GiB.
	MaxBody int64
	// HealthBody makes all health responses carry the Open Inference Protocol's body.
	HealthBody bool
	// StallTimeout is the time within which a client must send 64 KiB of a body, or the rest of it. 0 means a
	// minute. The listener bounds the writing of responses.
	StallTimeout time.Duration
	// Load reports how much of the language models' key-value caches is in use, for clients that balance load
	// by it; false if no model reports it. It may be nil.
	Load func() (CacheLoad, bool)
	// Explain reports what happened to a recent request.
	Explain func(context.Context, infer.ExplainQuestion) (*infer.Explanation, error)
	// Recordings are the recordings that clients may request. If nil, there are none.
	Recordings *record.Recordings
	// Recorded is called when a recording starts, and with its summary when it ends. It is required with
	// Recordings.
	Recorded func(*path.Call, record.Options, *recording.Summary)
}

const (
	defaultMaxInput = 64 << 20
	defaultMaxBody  = 2 << 30
)

// New returns the handler of the protocol's paths. All other paths are 404.
func New(gateway *core.Gateway, o Options) http.Handler {
	if o.MaxInput == 0 {
		o.MaxInput = defaultMaxInput
	}
	if o.MaxBody == 0 {
		o.MaxBody = defaultMaxBody
	}
	o.MaxBody = o.Budget.Cap(max(o.MaxBody, o.MaxInput))
	if o.StallTimeout == 0 {
		o.StallTimeout = defaultStallTimeout
	}
	s := &server{gateway: gateway, path: path.New(gateway, path.Protocol{Noun: "API"}, o.Options), options: o}
	s.routes = s.table()
	return s
}

type server struct {
	gateway *core.Gateway
	path    *path.Path
	options Options
	routes  []route
	calls   sync.Pool // of *call
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := s.takeCall(w, r)
	defer s.putCall(c)
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // a panic's value
			_ = s.path.Visible(c.Method, path.Panicked(v))
			panic(http.ErrAbortHandler)
		}
	}()
	if err := s.serve(c); err != nil {
		if c.responding && errs.Of(err) == errs.Bug {
			_ = s.path.Visible(c.Method, err)
			panic(http.ErrAbortHandler) // the status has been sent
		}
		s.fail(c, err)
	}
	c.body.end()
}

// serve responds to a call, or returns the error to respond with.
func (s *server) serve(c *call) error {
	var p params
	route := s.match(c.http.Method, c.http.URL.EscapedPath(), &p)
	switch {
	case route == nil:
		c.unrouted()
		return notFound()
	case !route.takes(c.http.Method):
		c.unrouted()
		c.writer.Header().Set("Allow", route.allow)
		return errs.New(errs.MethodNotAllowed, "Method Not Allowed")
	}
	c.API, c.Method = route.api, route.pattern
	if route.infer != nil {
		var err error
		if c.Model, c.Version, err = p.target(); err != nil && s.options.Tenants.Current() == nil {
			c.unrouted()
			return err // under a policy a version may be a label
		}
		return route.infer(c)
	}
	p.keep(c.http)
	c.Model, _, _ = p.target() // empty for an endpoint without a model
	return s.path.Do(c.http.Context(), &c.Call, func() error {
		if route.respond != nil {
			return route.respond(c)
		}
		return route.serve(c.writer, c.http)
	})
}

// unrouted records that the call was refused before its stages.
func (c *call) unrouted() {
	if c.Client != nil {
		c.Client.Refused()
	}
}

func notFound() error { return errs.New(errs.PathNotFound, "Not Found") }
