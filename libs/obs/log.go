// Package obs is how a process shows what it does: log fields under fixed
// keys, and the registry of metrics.
package obs

import (
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// LogConfig configures the log.
type LogConfig struct {
	// Verbose is the verbosity: 0 shows information and up, 1 and more
	// shows debugging too.
	Verbose int `yaml:"verbose"`
	// Info, Warning and Error switch the levels.
	Info, Warning, Error bool
	// Format is text, for people, or json. Triton's names default and ISO8601
	// are text too.
	Format string `yaml:"format"`
	// File is where to write; empty is standard error.
	File string `yaml:"file"`
}

// NewLogger makes the process's logger and a function that closes its file.
func NewLogger(c LogConfig) (*zap.Logger, func(), error) {
	encoder, err := encoderOf(c.Format)
	if err != nil {
		return nil, nil, err
	}
	sink, closeSink := zapcore.Lock(os.Stderr), func() {}
	if c.File != "" {
		if sink, closeSink, err = zap.Open(c.File); err != nil {
			return nil, nil, errs.Wrap(errs.ConfigInvalid, err, "cannot open the log file %s: %v", c.File, err)
		}
	}
	core := zapcore.NewCore(encoder, sink, zap.LevelEnablerFunc(c.enabled))
	return zap.New(core), closeSink, nil
}

func (c LogConfig) enabled(l zapcore.Level) bool {
	switch l {
	case zapcore.DebugLevel:
		return c.Verbose > 0
	case zapcore.InfoLevel:
		return c.Info
	case zapcore.WarnLevel:
		return c.Warning
	}
	return c.Error
}

func encoderOf(format string) (zapcore.Encoder, error) {
	switch format {
	case "json":
		config := zap.NewProductionEncoderConfig()
		config.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		return zapcore.NewJSONEncoder(config), nil
	case "text", "default", "ISO8601", "":
		config := zap.NewDevelopmentEncoderConfig()
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		return zapcore.NewConsoleEncoder(config), nil
	}
	return nil, errs.New(errs.ConfigInvalid, "unknown log format %q: use text or json", format)
}

// Model gives the fields of a loaded content.
func Model(ref infer.ModelRef) []zap.Field {
	return []zap.Field{zap.String("model", ref.ID().String()), zap.Int64("version", ref.Version), zap.Uint64("generation", ref.Generation)}
}

// Instance gives the instance's identity.
func Instance(id infer.InstanceID) zap.Field {
	return zap.String("instance", fmt.Sprintf("%d/%d", id.Worker, id.Slot))
}

// Err gives an error with its reason.
func Err(err error) []zap.Field {
	return []zap.Field{zap.String("reason", string(errs.Of(err))), zap.Error(err)}
}
