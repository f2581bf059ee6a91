package control

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// encode makes the status of an error, with the error itself among its details.
// An error without a reason is a bug, whose text stays here.
func encode(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if !errs.Classified(err) && ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	e := errs.Visible(err)
	st := status.New(codes.Code(e.Reason.GRPC()), e.Msg)
	detailed, failed := st.WithDetails(protoadapt.MessageV1Of(&nereidv1.Error{
		Reason: string(e.Reason), Message: e.Msg, Model: e.Model, RetryAfterNs: uint64(max(e.RetryAfter, 0)),
	}))
	if failed != nil {
		return st.Err() // a detail that cannot be encoded must not hide the error
	}
	return detailed.Err()
}

// decode returns the error that the server failed with, or the error of the call
// itself: an unanswered one is state_unavailable, with answered false.
func decode(err error, peer string) (answered bool, decoded error) {
	st, ok := status.FromError(err)
	if !ok {
		return false, err
	}
	for _, detail := range st.Details() {
		if e, ok := detail.(*nereidv1.Error); ok {
			return true, fromMessage(e, peer)
		}
	}
	switch st.Code() {
	case codes.Unimplemented:
		return true, errs.Wrap(errs.Unsupported, err, "%s does not know the call: it is another service, or of another release", peer)
	case codes.PermissionDenied:
		return true, errs.Wrap(errs.RoleForbidden, err, "%s does not take the call: %s", peer, st.Message())
	case codes.ResourceExhausted:
		return true, errs.Wrap(errs.BodyTooLarge, err, "%s does not take the call: %s", peer, st.Message())
	}
	return false, errs.Wrap(errs.StateUnavailable, errors.New(st.Message()), "%s does not answer: %s", peer, st.Message())
}

// fromMessage reads an error. A reason that this release does not know is a bug.
func fromMessage(m *nereidv1.Error, peer string) error {
	reason := errs.Reason(m.GetReason())
	if !reason.Known() || reason == errs.Bug {
		return errs.Wrap(errs.Bug, errors.New(m.GetMessage()), "%s failed with %q: its log says why", peer, m.GetReason()).WithModel(m.GetModel())
	}
	return errs.New(reason, "%s", m.GetMessage()).WithModel(m.GetModel()).WithRetry(time.Duration(m.GetRetryAfterNs()))
}
