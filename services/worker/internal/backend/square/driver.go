package square

import (
	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Driver opens the square backend, which has no settings.
func Driver() backend.Driver {
	return backend.Driver{
		Name: backends.Square,
		Open: func(backend.Environment) (backend.Backend, error) { return new(Backend), nil },
	}
}
