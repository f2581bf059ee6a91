package rpc

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nereid-serving/nereid/libs/errs"
)

// errorDomain is the domain in ErrorInfo, which says who defines the reasons.
const errorDomain = "nereid"

// defaultRetry is the retry delay of a retryable error that does not set its own.
const defaultRetry = time.Second

// deadlineExceeded is the text for every call that its deadline ended. Scripts look for this text, which is
// that of gRPC's own clients. The reason says where the call was.
const deadlineExceeded = "Deadline Exceeded"

// status returns the status of a call that ended with err. Errors without a reason that already are statuses
// come from gRPC itself, for example for a message that cannot be parsed, and those of contexts from a caller
// that disconnected. All others are bugs, and their text goes to the log.
func (s *service) status(method string, err error) error {
	if err == nil {
		return nil
	}
	var e *errs.Error
	if !errors.As(err, &e) {
		if st, ok := status.FromError(err); ok {
			return worded(st).Err()
		}
		if st := status.FromContextError(err); st.Code() != codes.Unknown {
			return worded(st).Err()
		}
	}
	e = s.path.Visible(method, err)
	st := worded(status.New(codes.Code(e.Reason.GRPC()), clip(e.Msg)))
	detailed, err := st.WithDetails(details(e)...)
	if err != nil {
		return st.Err() // a detail that cannot be encoded must not hide the error
	}
	return detailed.Err()
}

// maxText is how many bytes of its client's headers a status may use. gRPC's clients in C++ and Python refuse
// more than 8 KiB of headers, text and details together, and then do not show the error at all.
const maxText = 7 << 10

// clip shortens a text that a client could not receive, such as a Python traceback. Each byte is sent twice: in
// the message, where anything but printable ASCII takes three bytes, and in the details, as base64.
func clip(text string) string {
	taken := 0
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '%' {
			taken += 2
		}
		if taken++; taken+(i+1)*4/3 > maxText {
			return fmt.Sprintf("%s… (the first %d of %d bytes; over HTTP errors come whole)", strings.ToValidUTF8(text[:i], ""), i, len(text))
		}
	}
	return text
}

// worded replaces a status's text by the one that clients know for its code.
func worded(st *status.Status) *status.Status {
	if st.Code() == codes.DeadlineExceeded {
		return status.New(st.Code(), deadlineExceeded)
	}
	return st
}

func details(e *errs.Error) []protoadapt.MessageV1 {
	info := &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: errorDomain}
	if e.Model != "" {
		info.Metadata = map[string]string{"model": e.Model}
	}
	list := []protoadapt.MessageV1{protoadapt.MessageV1Of(info)}
	delay := e.RetryAfter
	if delay <= 0 && e.Reason.Retryable() {
		delay = defaultRetry
	}
	if delay > 0 {
		list = append(list, protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}))
	}
	return list
}
