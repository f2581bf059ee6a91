// Package obs makes a process observable: log fields under fixed keys, and the
// registry of metrics.
package obs

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// LogConfig configures the log.
type LogConfig struct {
	// Verbose is the verbosity: 0 shows information and up, 1 and more
	// shows debugging too.
	Verbose uint32
	// Info, Warning and Error switch the levels.
	Info, Warning, Error bool
	// Format is default or ISO8601, Triton's lines; text, columns; or json. Empty is
	// default.
	Format string
	// File is the file to write to; empty is standard error. It is set only at the start.
	File string
}

// Log is the log of a process, whose levels and format change while it is written. It is
// safe for concurrent use.
type Log struct {
	*zap.Logger
	opened LogConfig
	state  atomic.Pointer[logState]
	close  func()

	mu       sync.Mutex
	revision uint64 // of the settings in force; guarded by mu
}

// logState is a configuration and its encoder. Both are immutable.
type logState struct {
	LogConfig
	encoder zapcore.Encoder
}

// OpenLog opens the log. Errors have the reason config_invalid.
func OpenLog(c LogConfig) (*Log, error) {
	l := &Log{opened: c, close: func() {}}
	if err := l.set(c); err != nil {
		return nil, err
	}
	sink := zapcore.Lock(os.Stderr)
	if c.File != "" {
		var err error
		if sink, l.close, err = zap.Open(c.File); err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot open the log file %s: %v", c.File, err)
		}
	}
	l.Logger = zap.New(&logCore{log: l, sink: sink}, zap.AddCaller())
	return l, nil
}

// Close closes the log's file.
func (l *Log) Close() { l.close() }

// Config returns the configuration in force.
func (l *Log) Config() LogConfig { return l.state.Load().LogConfig }

// Apply puts settings in force over those that the log was opened with. Settings of an
// earlier revision than those in force change nothing. The error has the reason
// invalid_parameter, and then nothing changes either.
func (l *Log) Apply(s LogSettings) error {
	c, err := l.opened.With(s.Values)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.Revision < l.revision {
		return nil
	}
	l.revision = s.Revision
	return l.set(c)
}

func (l *Log) set(c LogConfig) error {
	encoder, err := encoderOf(c.Format)
	if err != nil {
		return err
	}
	l.state.Store(&logState{c, encoder})
	return nil
}

// logCore writes entries by the state in force. The fields of loggers are kept as they
// are, since the encoder may be another when an entry is written.
type logCore struct {
	log    *Log
	sink   zapcore.WriteSyncer
	fields []zapcore.Field
}

// Enabled implements zapcore.Core.
func (c *logCore) Enabled(l zapcore.Level) bool { return c.log.state.Load().enabled(l) }

// With implements zapcore.Core.
func (c *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{log: c.log, sink: c.sink, fields: slices.Concat(c.fields, fields)}
}

// Check implements zapcore.Core.
func (c *logCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c *logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	line, err := c.log.state.Load().encoder.EncodeEntry(e, slices.Concat(c.fields, fields))
	if err != nil {
		return err
	}
	_, err = c.sink.Write(line.Bytes())
	line.Free()
	if err == nil && e.Level > zapcore.ErrorLevel {
		err = c.sink.Sync() // the process may end
	}
	return err
}

// Sync implements zapcore.Core.
func (c *logCore) Sync() error { return c.sink.Sync() }

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
		config.EncodeTime, config.CallerKey = zapcore.RFC3339NanoTimeEncoder, ""
		return zapcore.NewJSONEncoder(config), nil
	case "text":
		config := zap.NewDevelopmentEncoderConfig()
		config.EncodeLevel, config.CallerKey = zapcore.CapitalLevelEncoder, ""
		return zapcore.NewConsoleEncoder(config), nil
	case "default", "ISO8601", "":
		return newTritonEncoder(format == "ISO8601"), nil
	}
	return nil, errs.New(errs.ConfigInvalid, "unknown log format %q: use default, ISO8601, text or json", format)
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
