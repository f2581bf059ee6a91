package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/aws/smithy-go"
	"gocloud.dev/gcerrors"
	"google.golang.org/api/googleapi"

	"github.com/nereid-serving/nereid/libs/errs"
)

// errStalled says that a store took a request and sent nothing.
var errStalled = errors.New("nothing came for too long")

// answer is what a store said, in the words of its protocol. It is all that is
// kept of a provider's error, whose text may hold more than should be shown.
type answer struct {
	status int
	code   string
	text   string
}

func (a answer) Error() string {
	parts := make([]string, 0, 3)
	if a.status != 0 {
		parts = append(parts, fmt.Sprintf("status %d", a.status))
	}
	for _, s := range []string{a.code, a.text} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, " ")
}

// explain makes an error of one that a request ended with.
func (d *Dir) explain(ctx context.Context, doing string, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errStalled) {
		return cause // ended from outside
	} else if cause != nil {
		err = cause
	}
	said := answerOf(err)
	reason, fix := d.judge(err, said)
	return errs.Wrap(reason, said, "%s: cannot %s: %s: %s", d.at, doing, said, fix)
}

// judge tells what kind of failure it is, and what to do about it.
func (d *Dir) judge(err error, said answer) (reason errs.Reason, fix string) {
	switch {
	case errors.Is(err, errChanged), said.status == http.StatusPreconditionFailed, gcerrors.Code(err) == gcerrors.FailedPrecondition:
		return errs.FilesChanged, "it changed since it was listed; it is listed again"
	case throttled(said):
		return errs.StoreThrottled, "the store asks to slow down; it is tried again later"
	case denied(err, said):
		return errs.StoreDenied, d.adviceOnAccess()
	case said.code == "NoSuchBucket" || said.code == "ContainerNotFound":
		return errs.StoreNotFound, fmt.Sprintf("create the bucket %s, or correct its name, region or endpoint", d.at.Bucket)
	case gcerrors.Code(err) == gcerrors.NotFound, said.status == http.StatusNotFound, errors.Is(err, fs.ErrNotExist):
		return errs.StoreNotFound, "check the bucket's name and the path, and whether somebody removed it"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errs.StoreTruncated, "the connection ended before all bytes came; it is tried again"
	case said.status == http.StatusMovedPermanently:
		return errs.StoreNotFound, "the bucket is in another region: set AWS_DEFAULT_REGION to it"
	}
	return errs.StoreUnreachable, "check the endpoint, the network and the store; it is tried again"
}

func (d *Dir) adviceOnAccess() string {
	needs := map[string]string{
		"s3": "s3:ListBucket on the bucket and s3:GetObject on its objects",
		"gs": "storage.objects.list and storage.objects.get",
		"as": "the role Storage Blob Data Reader",
	}[d.at.Scheme]
	if d.bucket.anonymous {
		return "no credentials were found, and anonymous access is not allowed: give credentials by the environment or " + credentialVariable + "; they need " + needs
	}
	return "check the credentials; they need " + needs
}

func throttled(a answer) bool {
	switch a.code {
	case "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServerBusy", "TooManyRequests":
		return true
	}
	return a.status == http.StatusTooManyRequests
}

func denied(err error, a answer) bool {
	return a.status == http.StatusForbidden || a.status == http.StatusUnauthorized ||
		gcerrors.Code(err) == gcerrors.PermissionDenied || errors.Is(err, fs.ErrPermission)
}

// answerOf reads what the store said out of a provider's error.
func answerOf(err error) answer {
	var (
		a      answer
		status interface{ HTTPStatusCode() int }
		inS3   smithy.APIError
		inGCS  *googleapi.Error
		inAz   *azcore.ResponseError
	)
	if errors.As(err, &status) {
		a.status = status.HTTPStatusCode()
	}
	switch {
	case errors.As(err, &inS3):
		a.code, a.text = inS3.ErrorCode(), short(inS3.ErrorMessage())
	case errors.As(err, &inGCS):
		a.status, a.text = inGCS.Code, short(inGCS.Message)
		if len(inGCS.Errors) > 0 {
			a.code = inGCS.Errors[0].Reason
		}
	case errors.As(err, &inAz):
		a.status, a.code = inAz.StatusCode, inAz.ErrorCode
	case a.status == 0:
		a.text = plain(err)
	}
	return a
}

// plain is the text of an error below the providers' ones.
func plain(err error) string {
	var op *net.OpError
	var file *fs.PathError
	switch {
	case errors.As(err, &op):
		return op.Error()
	case errors.As(err, &file):
		return file.Err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	for _, known := range []error{errChanged, errStalled, io.ErrUnexpectedEOF} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer in time"
	}
	var request *url.Error
	if errors.As(err, &request) { // without its address, which may be signed
		return short(request.Err.Error())
	}
	if code := gcerrors.Code(err); code != gcerrors.Unknown && code != gcerrors.OK {
		return code.String()
	}
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return short(err.Error())
}

// hideSecrets keeps of an error about credentials only its kind: parsers quote
// what they read.
func hideSecrets(err error) error {
	var file *fs.PathError
	if errors.As(err, &file) {
		return file
	}
	return fmt.Errorf("%T", err)
}

// short bounds what a server may have printed.
func short(text string) string {
	const most = 200
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
