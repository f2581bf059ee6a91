package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// errStalled says that a store took a request and sent nothing.
var errStalled = errors.New("nothing came for too long")

// response is what a store said, in the words of its protocol. It is all that is
// kept of a provider's error, whose text may hold more than should be shown.
type response struct {
	status int
	code   string
	text   string
}

func (r response) Error() string {
	parts := make([]string, 0, 3)
	if r.status != 0 {
		parts = append(parts, fmt.Sprintf("status %d", r.status))
	}
	for _, s := range []string{r.code, r.text} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, " ")
}

// wrapError makes an error of one that a request ended with.
func (d *Dir) wrapError(ctx context.Context, doing string, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errStalled) {
		return cause // ended from outside
	} else if cause != nil {
		err = cause
	}
	r := d.response(err)
	reason, fix := d.classify(err, r)
	return errs.Wrap(reason, r, "%s: cannot %s: %s: %s", d.at, doing, r, fix)
}

// classify tells what kind of failure it is, and what to do about it.
func (d *Dir) classify(err error, r response) (reason errs.Reason, fix string) {
	switch {
	case errors.Is(err, errChanged), r.status == http.StatusPreconditionFailed:
		return errs.FilesChanged, "it changed since it was listed; it is listed again"
	case throttled(r):
		return errs.StoreThrottled, "the store asks to slow down; it is tried again later"
	case denied(err, r):
		return errs.StoreDenied, d.adviceOnAccess()
	case r.code == "NoSuchBucket" || r.code == "ContainerNotFound":
		return errs.StoreNotFound, fmt.Sprintf("create the bucket %s, or correct its name, region or endpoint", d.at.Bucket)
	case r.status == http.StatusNotFound, errors.Is(err, fs.ErrNotExist):
		return errs.StoreNotFound, "check the bucket's name and the path, and whether it was removed"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errs.StoreTruncated, "the connection ended before all bytes came; it is tried again"
	case r.status == http.StatusMovedPermanently:
		return errs.StoreNotFound, "the bucket is in another region: set AWS_DEFAULT_REGION to it"
	}
	return errs.StoreUnreachable, "check the endpoint, the network and the store; it is tried again"
}

func (d *Dir) adviceOnAccess() string {
	advice := "check the credentials"
	if d.bucket.anonymous {
		advice = "no credentials were found, and anonymous access is not allowed: give credentials by the environment or " + credentialVariable
	}
	if rights := d.at.provider().rights; rights != "" {
		advice += "; they need " + rights
	}
	return advice
}

func throttled(r response) bool {
	switch r.code {
	case "SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServerBusy", "TooManyRequests":
		return true
	}
	return r.status == http.StatusTooManyRequests
}

func denied(err error, r response) bool {
	return r.status == http.StatusForbidden || r.status == http.StatusUnauthorized || errors.Is(err, fs.ErrPermission)
}

// response reads what the store said out of a provider's error.
func (d *Dir) response(err error) response {
	var status interface{ HTTPStatusCode() int }
	code := 0
	if errors.As(err, &status) {
		code = status.HTTPStatusCode()
	}
	if read := d.at.provider().response; read != nil {
		if r, ok := read(err); ok {
			r.status = cmp.Or(r.status, code)
			return r
		}
	}
	if code != 0 {
		return response{status: code}
	}
	return response{text: plain(err)}
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
