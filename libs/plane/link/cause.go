package link

import (
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Cause returns why a stream could not be opened or has ended, as an *errs.Error.
func Cause(err error) error {
	var known *errs.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.Is(err, io.EOF):
		return errs.Wrap(errs.PeerUnreachable, err, "the peer has ended the stream")
	}
	said, _ := status.FromError(err)
	switch said.Code() {
	case codes.FailedPrecondition, codes.Unimplemented:
		return errs.Wrap(errs.PeerProtocol, err, "%s", said.Message())
	case codes.Aborted:
		return errs.Wrap(errs.SchedulerDeposed, err, "%s", said.Message())
	case codes.PermissionDenied:
		return errs.Wrap(errs.RoleForbidden, err, "%s", said.Message())
	case codes.Internal, codes.ResourceExhausted:
		return errs.Wrap(errs.PeerMalformed, err, "%s", said.Message())
	}
	return errs.Wrap(errs.PeerUnreachable, err, "%s", said.Message())
}

// Status returns the status with which a server ends a stream.
func Status(err error) error {
	if err == nil {
		return nil
	}
	code := codes.Code(errs.Of(err).GRPC())
	if errs.Of(err) == errs.SchedulerDeposed { // tells the peer that nothing has failed
		code = codes.Aborted
	}
	return status.New(code, err.Error()).Err()
}
