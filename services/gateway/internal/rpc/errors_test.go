package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

func TestEveryReasonHasItsStatus(t *testing.T) {
	s := newService(nil, Options{})
	for _, reason := range errs.Reasons() {
		err := fmt.Errorf("somewhere: %w", errs.New(reason, "text of %s", reason).WithModel("m"))
		st := status.Convert(s.status("method", err))
		want := "text of " + string(reason)
		if reason == errs.Bug {
			want = "internal error" // whatever it says itself
		}
		if codes.Code(reason.GRPC()) == codes.DeadlineExceeded {
			want = "Deadline Exceeded"
		}
		if st.Code() != codes.Code(reason.GRPC()) || st.Message() != want {
			t.Errorf("%s: %v %q", reason, st.Code(), st.Message())
		}
		var info, retry bool
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				info = d.Reason == string(reason) && d.Domain == "nereid" && d.Metadata["model"] == "m"
			case *errdetails.RetryInfo:
				retry = d.RetryDelay.AsDuration() > 0
			}
		}
		if !info || retry != reason.Retryable() {
			t.Errorf("%s: details %v", reason, st.Details())
		}
	}
}

func TestErrorsWithoutAReason(t *testing.T) {
	foreign := errors.New("password is 1234")
	tests := map[string]struct {
		err    error
		code   codes.Code
		text   string
		logged bool
	}{
		"no error":           {nil, codes.OK, "", false},
		"foreign":            {foreign, codes.Internal, "internal error", true},
		"unknown reason":     {errs.Wrap("made_up", foreign, "text"), codes.Internal, "internal error", true},
		"status of gRPC":     {status.New(codes.ResourceExhausted, "too large").Err(), codes.ResourceExhausted, "too large", false},
		"caller is gone":     {context.Canceled, codes.Canceled, "context canceled", false},
		"caller's time over": {context.DeadlineExceeded, codes.DeadlineExceeded, "Deadline Exceeded", false},
		"cancelled by name":  {errs.Wrap(errs.Canceled, context.Canceled, ""), codes.Canceled, "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var logged error
			s := newService(nil, Options{Options: path.Options{Log: func(_ string, err error) { logged = err }}})
			st := status.Convert(s.status("method", tt.err))
			if st.Code() != tt.code || st.Message() != tt.text {
				t.Errorf("got %v %q, want %v %q", st.Code(), st.Message(), tt.code, tt.text)
			}
			if (logged != nil) != tt.logged || (tt.logged && !errors.Is(logged, foreign)) {
				t.Errorf("logged %v", logged)
			}
		})
	}
}
