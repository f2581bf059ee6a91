package process

import (
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/obs"
)

// LogSettings are those of a process's log.
type LogSettings struct {
	LogVerbose uint32        `name:"log-verbose" default:"0" group:"Log" help:"1 and more show debugging."`
	LogInfo    config.Switch `name:"log-info" default:"true" group:"Log" help:"Show information."`
	LogWarning config.Switch `name:"log-warning" default:"true" group:"Log" help:"Show warnings."`
	LogError   config.Switch `name:"log-error" default:"true" group:"Log" help:"Show errors."`
	LogFormat  string        `name:"log-format" default:"default" enum:"default,ISO8601,text,json" group:"Log" help:"Triton's line formats default or ISO8601, columns as text, or json."`
	LogFile    string        `name:"log-file" placeholder:"FILE" group:"Log" help:"File to log to instead of standard error."`

	// Misspelled are variables of the environment, which the log begins with.
	Misspelled []config.Misspelling `kong:"-"`
}

// Open opens the log. It warns of misspelled variables. Errors have the reason
// config_invalid.
func (s *LogSettings) Open() (*obs.Log, error) {
	log, err := obs.OpenLog(obs.LogConfig{
		Verbose: s.LogVerbose, Info: s.LogInfo.On, Warning: s.LogWarning.On, Error: s.LogError.On,
		Format: s.LogFormat, File: s.LogFile,
	})
	if err != nil {
		return nil, err
	}
	for _, m := range s.Misspelled {
		log.Warn("a variable of the environment is no setting and has no effect", zap.String("variable", m.Variable), zap.String("did_you_mean", m.Meant))
	}
	return log, nil
}
