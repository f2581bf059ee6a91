package serve

import (
	"net/http"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/obs"
)

// Secure makes an HTTP server use TLS; a nil TLS leaves it unchanged. Failed handshakes are
// logged at debug level, because port scans cause them. The error has the reason
// config_invalid.
func (t *TLS) Secure(server *http.Server, log *zap.Logger) error {
	if t == nil {
		return nil
	}
	var err error
	if server.TLSConfig, err = t.Config(LogReload(log)); err != nil {
		return err
	}
	server.ErrorLog, err = zap.NewStdLogAt(log, zap.DebugLevel)
	return err
}

// LogReload returns what logs that changed files cannot be used.
func LogReload(log *zap.Logger) func(error) {
	return func(err error) {
		log.Error("cannot use the changed certificates: the previous ones stay in use", obs.Err(err)...)
	}
}
