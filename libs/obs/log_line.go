package obs

import (
	"os"
	"path/filepath"
	"strconv"

	"go.uber.org/zap/buffer"
	"go.uber.org/zap/zapcore"
)

// tritonEncoder writes Triton's lines: the level's letter, the time, the process and where
// the message comes from, then the message as a JSON string, and behind it the fields,
// which Triton has not.
type tritonEncoder struct {
	zapcore.Encoder // of the message and the fields
	iso             bool
	process         string
	lines           buffer.Pool
}

func newTritonEncoder(iso bool) *tritonEncoder {
	message := zapcore.EncoderConfig{
		MessageKey: "message", ConsoleSeparator: " ", LineEnding: zapcore.DefaultLineEnding,
		EncodeDuration: zapcore.StringDurationEncoder, EncodeTime: zapcore.RFC3339NanoTimeEncoder,
	}
	return &tritonEncoder{zapcore.NewConsoleEncoder(message), iso, " " + strconv.Itoa(os.Getpid()) + " ", buffer.NewPool()}
}

// Clone implements zapcore.Encoder.
func (e *tritonEncoder) Clone() zapcore.Encoder {
	clone := *e
	clone.Encoder = e.Encoder.Clone()
	return &clone
}

// EncodeEntry implements zapcore.Encoder.
func (e *tritonEncoder) EncodeEntry(entry zapcore.Entry, fields []zapcore.Field) (*buffer.Buffer, error) {
	line := e.lines.Get()
	letter := letterOf(entry.Level)
	if utc := entry.Time.UTC(); e.iso {
		line.AppendTime(utc, "2006-01-02T15:04:05Z ")
		line.AppendByte(letter)
	} else {
		line.AppendByte(letter)
		line.AppendTime(utc, "0102 15:04:05.000000")
	}
	line.AppendString(e.process)
	if entry.Caller.Defined {
		line.AppendString(filepath.Base(entry.Caller.File))
		line.AppendByte(':')
		line.AppendInt(int64(entry.Caller.Line))
	}
	line.AppendString("] ")
	entry.Message = strconv.Quote(entry.Message)
	rest, err := e.Encoder.EncodeEntry(entry, fields)
	if err != nil {
		line.Free()
		return nil, err
	}
	_, _ = line.Write(rest.Bytes())
	rest.Free()
	return line, nil
}

// letterOf is the letter of a level. Triton's verbose messages are marked as information.
func letterOf(l zapcore.Level) byte {
	switch {
	case l >= zapcore.ErrorLevel:
		return 'E'
	case l == zapcore.WarnLevel:
		return 'W'
	}
	return 'I'
}
