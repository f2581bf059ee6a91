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

// errorDomain is the domain of ErrorInfo: who defines the reasons.
const errorDomain = "nereid"

// defaultRetry is the retry delay of a retryable error without its own.
const defaultRetry = time.Second

// deadlineExceeded is the text of every call that its deadline has ended, for
// which scripts look: that of gRPC's own clients. The reason says where it was.
const deadlineExceeded = "Deadline Exceeded"

// status makes the status of a call that ended with err. Errors that carry no
// reason but are statuses already come from gRPC itself, such as a message
// that cannot be read, and those of contexts from a caller that went away;
// all others are bugs, whose text goes to the log.
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

// maxText is how many bytes of its client's headers the text of a status may take: gRPC's
// clients in C++ and Python refuse more than 8 KiB of them, text and details together,
// and then say nothing of the error.
const maxText = 7 << 10

// clip shortens a text that a client could not receive, such as a traceback of
// Python. Each byte of it travels twice: as the message, where what is not printable
// ASCII takes three, and in base64 as a part of the details.
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

// worded gives a status the text that clients know for its code.
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
