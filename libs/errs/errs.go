// Package errs is Nereid's one error type and its table of reasons.
//
// A reason is a stable snake_case word. It alone decides the HTTP status and
// the gRPC code of a response, and the same word is the metric label, the log
// field and the anchor in the reference page. The table is data
// (reasons.tsv); constants, statuses and the page are generated from it.
//
// Errors that carry no reason are bugs: their text is for the log, never for
// the caller.
package errs

//go:generate go run ./internal/gen

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Reason names why a request was refused or failed. The zero value is no
// reason; [Of] never returns it for a non-nil error.
type Reason string

// Error is the error that crosses package borders in Nereid.
type Error struct {
	// Reason decides status, code, metric label and documentation.
	Reason Reason
	// Op says what was being done, in lower case, for the log. It is not
	// shown to callers.
	Op string
	// Msg is the sentence for the caller. Where Triton's clients match a
	// text it is Triton's.
	Msg string
	// Model is the model concerned, or empty.
	Model string
	// RetryAfter is the delay before a retry; zero if the table's default or none applies.
	RetryAfter time.Duration
	// Err is the cause, for the log and for errors.Is; it may be nil.
	Err error
}

// New makes an error with a formatted message.
func New(reason Reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Msg: message(format, args)}
}

// Wrap makes an error whose message is formatted and whose cause is err.
func Wrap(reason Reason, err error, format string, args ...any) *Error {
	return &Error{Reason: reason, Msg: message(format, args), Err: err}
}

// maxText is the most bytes of a text that a message quotes: a name may be as long as
// a request.
const maxText = 16 << 10

func message(format string, args []any) string {
	for i := range args {
		if text, ok := args[i].(string); ok && len(text) > maxText {
			args[i] = strings.ToValidUTF8(text[:maxText], "") + "…"
		}
	}
	return fmt.Sprintf(format, args...)
}

// WithModel sets the model and returns e.
func (e *Error) WithModel(model string) *Error { e.Model = model; return e }

// WithRetry sets RetryAfter and returns e.
func (e *Error) WithRetry(d time.Duration) *Error { e.RetryAfter = d; return e }

// Error gives operation, message and cause, for logs.
func (e *Error) Error() string {
	var parts []string
	for _, s := range []string{e.Op, e.Msg} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if e.Err != nil {
		if cause := e.Err.Error(); len(parts) == 0 || !strings.Contains(parts[len(parts)-1], cause) {
			parts = append(parts, cause)
		}
	}
	if len(parts) == 0 {
		return string(e.Reason)
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error of the same reason and no message,
// so that errors.Is(err, errs.New(reason, "")) compares reasons.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Reason == e.Reason && t.Msg == "" && t.Err == nil
}

// Of returns the reason of err: that of the outermost *Error in its chain,
// [Bug] for any other non-nil error, and the empty reason for nil.
func Of(err error) Reason {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return Bug
}

// Classified reports whether err carries a reason: whether a *Error is in its
// chain. It separates bugs that the code found (classified as [Bug]) from foreign
// errors, which [Of] counts as bugs too.
func Classified(err error) bool {
	var e *Error
	return errors.As(err, &e)
}

// From returns err as an *Error: the outermost one in its chain, or a [Bug]
// that wraps it and keeps its text from callers. From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Reason: Bug, Msg: hidden, Err: err}
}

// hidden is the text of a bug that callers see.
const hidden = "internal error"

// Visible returns err as callers may see it: like [From], but with the text of every [Bug]
// hidden, and with unknown reasons as [Bug]. The hidden text may contain internal details, such
// as the address of a peer.
func Visible(err error) *Error {
	e := From(err)
	if e == nil || e.Reason != Bug && e.Reason.Known() {
		return e
	}
	return &Error{Reason: Bug, Msg: hidden, Model: e.Model, Err: err}
}

// HTTP is the HTTP status of the reason; 500 for an unknown one.
func (r Reason) HTTP() int { return int(r.row().http) }

// GRPC is the number of the gRPC status code of the reason (google.golang.org/grpc/codes).
func (r Reason) GRPC() uint32 { return uint32(r.row().grpc) }

// Retryable reports whether the same request may succeed later.
func (r Reason) Retryable() bool { return r.row().retry }

// Summary is the sentence of the reference page.
func (r Reason) Summary() string { return r.row().summary }

// Known reports whether the reason is in the table.
func (r Reason) Known() bool { return lookup(r) >= 0 }

func (r Reason) row() row {
	if i := lookup(r); i >= 0 {
		return rowAt(i)
	}
	return rowAt(0)
}
