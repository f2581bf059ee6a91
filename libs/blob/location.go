package blob

import (
	"path"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Location is a place in an object store.
type Location struct {
	// Scheme is s3, gs, as or file.
	Scheme string
	// Endpoint is the server of an S3 store that is not Amazon's, such as
	// http://127.0.0.1:9000; else empty.
	Endpoint string
	// Account is that of an Azure store.
	Account string
	// Bucket is the bucket or container; of a local directory its path.
	Bucket string
	// Prefix is the path within the bucket, without slashes at its ends.
	Prefix string
}

// Remote reports whether a text is the URL of an object store rather than a path.
func Remote(text string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && scheme != "file"
}

// Parse reads a URL in one of the forms
//
//	s3://bucket/path
//	s3://host:port/bucket/path           over HTTP
//	s3://https://host:port/bucket/path
//	gs://bucket/path
//	as://account/container/path
//	file:///path
//
// where the path may be empty. Nothing in it is percent-encoded. Errors have the
// reason config_invalid.
func Parse(text string) (Location, error) {
	scheme, rest, _ := strings.Cut(text, "://")
	p, known := providerOf(scheme)
	if !known {
		return Location{}, errs.New(errs.ConfigInvalid, "%s: %s is no store that models are read from: give %s or a local directory", text, scheme, urlForms())
	}
	l := Location{Scheme: scheme}
	if !p.parse(&l, rest) {
		return l, errs.New(errs.ConfigInvalid, "%s names no place in an object store: write %s", text, p.forms)
	}
	return l, nil
}

// bucketAndPrefix sets both from what follows the server or account of a URL, and
// reports whether there is a bucket.
func (l *Location) bucketAndPrefix(rest string) bool {
	var prefix string
	l.Bucket, prefix, _ = strings.Cut(rest, "/")
	l.Prefix = strings.Trim(path.Clean("/"+prefix), "/")
	return l.Bucket != "" && !strings.ContainsAny(l.Bucket, " ?#:")
}

func (l Location) provider() provider {
	p, _ := providerOf(l.Scheme)
	return p
}

// String is the location's URL.
func (l Location) String() string {
	text := l.base()
	if l.Prefix != "" {
		text += "/" + l.Prefix
	}
	return text
}

// base is the URL of the whole bucket.
func (l Location) base() string { return l.provider().base(l) }

// key is the key of a name below the location.
func (l Location) key(name string) string { return strings.Trim(l.below()+name, "/") }

// below is what the keys below the location begin with.
func (l Location) below() string {
	if l.Prefix == "" {
		return ""
	}
	return l.Prefix + "/"
}
