package repeat

import (
	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Driver opens the repeat backend, which has no settings.
func Driver() backend.Driver {
	return backend.Driver{
		Name: backends.Repeat,
		Open: func(backend.Environment) (backend.Backend, error) { return new(Backend), nil },
	}
}
