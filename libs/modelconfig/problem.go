package modelconfig

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nereid-serving/nereid/libs/diagnostics"
	"github.com/nereid-serving/nereid/libs/errs"
)

// Problem is an error in a configuration.
type Problem struct {
	// Reason is [errs.ConfigInvalid] for a broken rule and
	// [errs.Unsupported] for a valid setting that this server does not do.
	Reason errs.Reason
	// File is where the problem is: the path of the configuration's text, or
	// that of another file of the model relative to the model's directory.
	// Empty if it has no name.
	File string
	// Field is the path of the field, such as input[0].dims; empty where the
	// whole file is meant.
	Field string
	// Line and Column, from 1, are where the field stands in the text; 0 if
	// it is not written there or there is no text.
	Line, Column int
	// Message says what is wrong. Where Triton has the case it is Triton's.
	Message string
	// Fix says what to do; it may be empty if the message does.
	Fix string
}

// Place gives file, line and column as far as they are known, such as
// config.pbtxt:3:1.
func (p Problem) Place() string {
	switch {
	case p.Line == 0:
		return p.File
	case p.File == "":
		return fmt.Sprintf("line %d:%d", p.Line, p.Column)
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// String gives place, message and fix in one line.
func (p Problem) String() string {
	var b strings.Builder
	if place := p.Place(); place != "" {
		b.WriteString(place + ": ")
	}
	b.WriteString(p.Message)
	if p.Fix != "" {
		b.WriteString(": " + p.Fix)
	}
	return b.String()
}

// Problems is every problem of one configuration. As an error it stands
// behind the *errs.Error that this package returns; [ProblemsOf] finds it.
type Problems []Problem

// Error gives the problems in one line each.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "; ")
}

// ProblemsOf returns the problems behind err, or nil.
func ProblemsOf(err error) Problems {
	var ps Problems
	errors.As(err, &ps)
	return ps
}

// AsError turns problems into an *errs.Error of the model; none are nil.
func (ps Problems) AsError(model string) error {
	if len(ps) == 0 {
		return nil
	}
	reason := errs.Unsupported
	for _, p := range ps {
		if p.Reason != errs.Unsupported {
			reason = errs.ConfigInvalid
		}
	}
	return errs.Wrap(reason, ps, "%s", ps.Error()).WithModel(model)
}

// maxProblems is how many problems of one kind of check are gathered. Nobody
// reads more at once, and a hostile text could hold one for each word.
const maxProblems = 100

// report gathers the problems of one configuration.
type report struct {
	model    string
	file     string // other than the configuration's text
	answered string // the file of the model that completed the configuration itself
	problems Problems
}

// invalid adds a broken rule. As in Triton, the message ends with the model.
func (r *report) invalid(field, fix, format string, args ...any) {
	r.add(errs.ConfigInvalid, field, fix, fmt.Sprintf(format, args...)+" for "+r.model)
}

// wrong is invalid for a message that names the model itself.
func (r *report) wrong(field, fix, format string, args ...any) {
	r.add(errs.ConfigInvalid, field, fix, fmt.Sprintf(format, args...))
}

// unsupported adds a setting that is valid in Triton and not served here.
func (r *report) unsupported(field, fix string) {
	r.add(errs.Unsupported, field, fix, fmt.Sprintf("'%s' of model %s is not supported", field, r.model))
}

func (r *report) add(reason errs.Reason, field, fix, message string) {
	if len(r.problems) == maxProblems {
		return
	}
	r.problems = append(r.problems, Problem{Reason: reason, File: r.file, Field: field, Message: message, Fix: fix})
}

// index and entry write the paths of fields.
func index(path string, i int) string { return diagnostics.Index(path, i) }

func entry(path, key string) string { return diagnostics.Entry(path, key) }
