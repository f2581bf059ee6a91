package identity

import (
	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Driver opens the identity backend, which has no settings.
func Driver() backend.Driver {
	return backend.Driver{
		Name: backends.Identity,
		Open: func(e backend.Environment) (backend.Backend, error) { return &Backend{pool: e.Pool}, nil },
	}
}
