package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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

// A text of any length reaches a client, whose headers are bounded: what does not fit is
// left out and said to be.
func TestLongTextsOfErrorsAreClipped(t *testing.T) {
	for _, c := range []struct {
		text string
		most int // bytes of it that come
	}{
		{strings.Repeat("x", 2900), 2900},
		{strings.Repeat("x", 1<<20), 3100},
		{strings.Repeat("\n", 1<<20), 1700},
		{strings.Repeat("é", 1<<20), 1700},
	} {
		st := status.Convert(newService(nil, Options{}).status("method", errs.New(errs.InstanceCrashed, "%s", c.text)))
		message := st.Message()
		details, err := proto.Marshal(st.Proto())
		if err != nil {
			t.Fatal(err)
		}
		encoded := len(url.PathEscape(message)) + len(details)*4/3
		came := min(len(message), len(c.text))
		if !utf8.ValidString(message) || encoded > 8000 || came > c.most+100 || came < c.most-200 {
			t.Errorf("%d bytes came as %d, with details %d: %.80q", len(c.text), len(message), encoded, message)
		}
		if whole := message == c.text; whole == strings.Contains(message, "over HTTP errors come whole") {
			t.Errorf("%d bytes came as %d: %q", len(c.text), len(message), message[max(0, len(message)-100):])
		}
	}
}
