package blob

import (
	"errors"
	"fmt"
	"strings"

	"gocloud.dev/blob"
)

// errChanged says that an object is not the one that was listed.
var errChanged = errors.New("the object is another than the one that was listed")

// synthetic begins ETags that are made here, of time and size, where there is
// none: a server that shows files which others put there knows none of them. They
// cannot be conditions of a read.
const synthetic = "~"

// etagOf names the content of a listed object.
func (p provider) etagOf(o *blob.ListObject) string {
	if tag := p.etag(o); tag != "" {
		return tag
	}
	return synthetic + fmt.Sprintf("%x-%x", o.ModTime.UnixNano(), o.Size)
}

// condition makes a read fail if the object has another ETag.
func (p provider) condition(tag string) func(func(any) bool) error {
	return func(as func(any) bool) error {
		if isSynthetic(tag) {
			return nil
		}
		return p.onlyIf(as, tag)
	}
}

// matches reports whether what is read has the ETag, as far as the store says.
func (p provider) matches(r *blob.Reader, tag string) bool {
	if p.served == nil || isSynthetic(tag) {
		return true
	}
	served := p.served(r)
	return served == "" || served == tag
}

func isSynthetic(tag string) bool { return strings.HasPrefix(tag, synthetic) }
