package blob

import (
	"errors"
	"fmt"
	"strings"
)

// errChanged says that an object is not the one that was listed.
var errChanged = errors.New("the object is another than the one that was listed")

// synthetic begins ETags that are made here, of time and size, where there is
// none: a server that shows files which others put there knows none of them. They
// cannot be conditions of a read.
const synthetic = "~"

func syntheticETag(o Object) string {
	return synthetic + fmt.Sprintf("%x-%x", o.Modified.UnixNano(), o.Size)
}

func isSynthetic(tag string) bool { return strings.HasPrefix(tag, synthetic) }
