package rest

import "github.com/nereid-serving/nereid/libs/infer"

// explain tells what became of a request. A tenant is told of its own requests alone.
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
