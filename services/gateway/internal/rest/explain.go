package rest

import "github.com/nereid-serving/nereid/libs/infer"

// explain reports what happened to a request. A tenant sees only its own requests.
func (s *server) explain(c *call) error {
	q := infer.ExplainQuestion{Request: c.http.PathValue("request"), Every: c.Tenant == nil}
	if c.Tenant != nil {
		q.Tenant = c.Tenant.Name
	}
	e, err := s.options.Explain(c.http.Context(), q)
	if err != nil {
		return err
	}
	return reply(c.writer, e)
}
