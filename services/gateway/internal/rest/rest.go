// Package rest is the gateway's HTTP front end: the inference protocol's
// version 2 with the extensions and responses of Triton's HTTP endpoint.
//
// It takes each request as a call to the gateway's [path.Path] and turns errors
// into statuses by their reason. It adds no goroutine of its own; a client that
// goes away cancels its request through the context that net/http gives.
//
// As in Triton, paths match as a whole and tolerate no trailing slash; a wrong
// method is 405 and an unknown path 404, both with a JSON body. Endpoints that
// this server lacks are unknown paths. Unlike Triton it percent-decodes model
// names, responds to HEAD where it does to GET, names the methods in Allow, and responds to an
// error with its reason and the request's id in headers.
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

// Options adjust the front end. The zero value stands for the defaults.
type Options struct {
	path.Options
	// MaxInput is the most bytes of a request's JSON, of a tensor in it, of a
	// raw input and of a decompressed body: Triton's --http-max-input-size.
	// 64 MiB if 0.
	MaxInput int64
	// MaxBody is the most bytes of a whole body with binary tensors. It bounds
	// the memory of one request and is at least MaxInput. 2 GiB if 0.
	MaxBody int64
	// HealthBody gives the responses to all probes of health the Open Inference Protocol's body.
	HealthBody bool
	// StallTimeout is within how long a client sends 64 KiB of a body, or the rest of it. A
	// minute if 0. The listener bounds the writing of responses.
	StallTimeout time.Duration
	// Load tells how much of the key-value caches of language models is in use, for the
	// clients that balance by it; false where no model says. It may be nil.
	Load func() (CacheLoad, bool)
	// Explain tells what became of a recent request.
	Explain func(context.Context, infer.ExplainQuestion) (*infer.Explanation, error)
	// Recordings are those that clients may ask for. It may be nil; then there are none.
	Recordings *record.Recordings
	// Recorded is called with each recording as it starts, and with its summary as it ends.
	// Required with Recordings.
	Recorded func(*path.Call, record.Options, *recording.Summary)
}

const (
	defaultMaxInput = 64 << 20
	defaultMaxBody  = 2 << 30
)

// New makes the handler of the protocol's paths. Everything else is 404.
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
			panic(http.ErrAbortHandler) // the response cannot be taken back
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
			return err // under a policy a version may have a label
		}
		return route.infer(c)
	}
	p.keep(c.http)
	c.Model, _, _ = p.target() // of an endpoint without one it is empty
	return s.path.Do(c.http.Context(), &c.Call, func() error {
		if route.respond != nil {
			return route.respond(c)
		}
		return route.serve(c.writer, c.http)
	})
}

// unrouted says that the call is refused before it takes its stages.
func (c *call) unrouted() {
	if c.Client != nil {
		c.Client.Refused()
	}
}

func notFound() error { return errs.New(errs.PathNotFound, "Not Found") }
