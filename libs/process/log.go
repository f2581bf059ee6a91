package process

import (
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/obs"
)

// LogSettings are those of a process's log.
type LogSettings struct {
	LogVerbose int           `name:"log-verbose" default:"0" group:"Log" help:"1 and more show debugging."`
	LogInfo    config.Switch `name:"log-info" default:"true" group:"Log" help:"Show information."`
	LogWarning config.Switch `name:"log-warning" default:"true" group:"Log" help:"Show warnings."`
	LogError   config.Switch `name:"log-error" default:"true" group:"Log" help:"Show errors."`
	LogFormat  string        `name:"log-format" default:"text" enum:"text,json,default,ISO8601" group:"Log" help:"text or json; Triton's default and ISO8601 are text."`
	LogFile    string        `name:"log-file" placeholder:"FILE" group:"Log" help:"Where to log instead of standard error."`

	// Misspelled are variables of the environment, which the log begins with.
	Misspelled []config.Misspelling `kong:"-"`
}

// Open makes the log and a function that closes its file. It warns of misspelled
// variables. Errors have the reason config_invalid.
func (s *LogSettings) Open() (*zap.Logger, func(), error) {
	log, closeLog, err := obs.NewLogger(obs.LogConfig{
		Verbose: s.LogVerbose, Info: s.LogInfo.On, Warning: s.LogWarning.On, Error: s.LogError.On,
		Format: s.LogFormat, File: s.LogFile,
	})
	if err != nil {
		return nil, nil, err
	}
	for _, m := range s.Misspelled {
		log.Warn("a variable of the environment is no setting and has no effect", zap.String("variable", m.Variable), zap.String("did_you_mean", m.Meant))
	}
	return log, closeLog, nil
}
