package codec

import (
	"errors"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Error is the message of an error; nil for nil. Texts that are not valid UTF-8, as
// a model may give them, are made so.
func Error(err error) *nereidv1.Error {
	e := errs.From(err)
	if e == nil {
		return nil
	}
	valid := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
	m := &nereidv1.Error{
		Reason: valid(string(e.Reason)), Message: valid(e.Msg), Model: valid(e.Model), RetryAfterNs: uint64(max(e.RetryAfter, 0)), Operation: valid(e.Op),
	}
	if e.Err != nil {
		m.Cause = valid(e.Err.Error())
	}
	return m
}

// ErrorOf is the error that a message brings, an *errs.Error; nil for nil.
func ErrorOf(m *nereidv1.Error) error {
	if m == nil {
		return nil
	}
	e := &errs.Error{
		Reason: errs.Reason(m.GetReason()), Msg: m.GetMessage(), Model: m.GetModel(),
		RetryAfter: duration(m.GetRetryAfterNs()), Op: m.GetOperation(),
	}
	if !e.Reason.Known() {
		e.Reason = errs.Bug
	}
	if m.GetCause() != "" {
		e.Err = errors.New(m.GetCause())
	}
	return e
}
