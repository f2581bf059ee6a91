package gateway

import (
	"context"

	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// logging reads the log settings of this process and changes those of all services.
type logging struct {
	log *obs.Log
	set func(ctx context.Context, changes map[string]string) (obs.LogSettings, error)
}

// Settings implements core.Logging.
func (l *logging) Settings() core.LogSettings {
	c := l.log.Config()
	return core.LogSettings{File: c.File, Info: c.Info, Warning: c.Warning, Error: c.Error, Verbose: c.Verbose, Format: c.Format}
}

// Set implements core.Logging. When it returns, the settings are in effect here; other services apply them when
// they are notified.
func (l *logging) Set(ctx context.Context, changes map[string]string) error {
	all, err := l.set(ctx, changes)
	if err != nil {
		return err
	}
	return l.log.Apply(all)
}
