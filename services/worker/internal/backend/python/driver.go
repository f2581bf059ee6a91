package python

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// Deps are what the backend tells of its models.
type Deps struct {
	// Log takes what models write and log, and what becomes of their stubs.
	Log *zap.Logger
	// Metrics gets the metrics of models; it may be nil.
	Metrics prometheus.Registerer
	// Based are the Python-based backends, by their names. Their models have no code
	// of their own.
	Based map[string]Based
}

// Based is a Python-based backend.
type Based struct {
	// File is the backend's code, by its absolute path; empty where it comes with the
	// server.
	File string
	// Settings are those of --backend-config of its name.
	Settings map[string]string
}

// Driver opens the backend.
func Driver(d Deps) backend.Driver {
	return backend.Driver{
		Name: backends.Python,
		Check: func(given map[string]string) error {
			_, err := readAll(given, d.Based)
			return err
		},
		Open: func(e backend.Environment) (backend.Backend, error) {
			b, err := open(e, d)
			if err != nil {
				return nil, err // not b, which would be no nil interface
			}
			return b, nil
		},
	}
}
