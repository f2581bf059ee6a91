package accumulator

import (
	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Sequence opens the backend sequence, which has no settings.
func Sequence() backend.Driver { return driver(backends.Sequence, false) }

// DynaSequence opens the backend dyna_sequence, which has no settings.
func DynaSequence() backend.Driver { return driver(backends.DynaSequence, true) }

func driver(name string, dynamic bool) backend.Driver {
	return backend.Driver{
		Name: name,
		Open: func(backend.Environment) (backend.Backend, error) { return &Backend{name: name, dynamic: dynamic}, nil },
	}
}
