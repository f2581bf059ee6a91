package rest

// explain tells what became of a request. A tenant is told of its own requests alone.
func (s *server) explain(c *call) error {
	tenant, every := "", true
	if c.Tenant != nil {
		tenant, every = c.Tenant.Name, false
	}
	e, err := s.options.Requests.Find(c.http.PathValue("request"), tenant, every)
	if err != nil {
		return err
	}
	return reply(c.writer, e)
}
