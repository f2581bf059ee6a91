package core

import (
	"context"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
)

// LookUp looks up the response to a checked request, if the version's model allows caching: see
// [cache.Cache.Look].
func (v *Version) LookUp(in *cache.Cache, r *infer.Request) (cache.Lookup, *infer.Response) {
	c := v.Config
	if !c.Reuses() || c.Decoupled {
		return cache.Lookup{}, nil
	}
	return in.Look(cache.Model{Content: v.Content, Kept: c.Cached, Shared: c.Shared}, r)
}

// reuse answers a step with the response to an equal request, if its model allows that. It reports whether it
// took the request over: the step then has its response already, or is submitted once the lookup has found
// none.
func (c *composition) reuse(s *stepRequest, r *infer.Request) bool {
	l, hit := s.version.LookUp(c.gateway.cache, r)
	if hit != nil {
		r.Release()
		hit.Work = s.work
		s.Receive(hit)
		return true
	}
	s.lookup, s.observe = l, l.Observer()
	if !l.Pending() {
		return false
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel, s.finding = cancel, true
	go func() {
		defer cancel()
		p := s.lookup.Find(ctx)
		if p == nil {
			c.events.put(event{step: s, request: r})
			return
		}
		r.Release()
		p.Work = s.work
		s.Receive(p)
	}()
	return true
}

// keep stores the response of an executed step for equal requests.
func (s *stepRequest) keep(p *infer.Response) {
	if p.Final && p.Index == 0 && p.Err == nil && !s.rerouted {
		s.lookup.Keep(p)
	}
	s.lookup.Close()
}
