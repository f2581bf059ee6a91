package blob

import (
	"net"
	"path"
	"path/filepath"
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

// Remote reports whether a text is meant as the URL of an object store, rather
// than as a path.
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
	l := Location{Scheme: scheme}
	switch scheme {
	case "s3":
		rest = l.endpoint(rest)
	case "as":
		l.Account, rest, _ = strings.Cut(rest, "/")
		if l.Account == "" {
			return l, malformed(text, "as://account/container/path")
		}
	case "file":
		if !filepath.IsAbs(rest) {
			return l, malformed(text, "file:///path")
		}
		l.Bucket = filepath.Clean(rest)
		return l, nil
	case "gs":
	default:
		return l, errs.New(errs.ConfigInvalid, "%s: %s is no store that models are read from: give s3://bucket/path, gs://bucket/path, as://account/container/path or a local directory", text, scheme)
	}
	l.Bucket, l.Prefix, _ = strings.Cut(rest, "/")
	if l.Bucket == "" || strings.ContainsAny(l.Bucket, " ?#") || strings.Contains(l.Bucket, ":") {
		return l, malformed(text, map[string]string{"s3": "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path", "gs": "gs://bucket/path", "as": "as://account/container/path"}[scheme])
	}
	l.Prefix = strings.Trim(path.Clean("/"+l.Prefix), "/")
	return l, nil
}

// endpoint cuts the server off, if the rest of an S3 URL names one.
func (l *Location) endpoint(rest string) string {
	protocol := "http"
	if before, after, ok := strings.Cut(rest, "://"); ok && (before == "http" || before == "https") {
		protocol, rest = before, after
	} else if host, _, _ := strings.Cut(rest, "/"); !hasPort(host) {
		return rest
	}
	host, rest, _ := strings.Cut(rest, "/")
	l.Endpoint = protocol + "://" + host
	return rest
}

func hasPort(host string) bool {
	_, port, err := net.SplitHostPort(host)
	return err == nil && port != ""
}

func malformed(text, want string) error {
	return errs.New(errs.ConfigInvalid, "%s names no place in an object store: write %s", text, want)
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
func (l Location) base() string {
	switch {
	case l.Account != "":
		return "as://" + l.Account + "/" + l.Bucket
	case l.Endpoint == "":
		return l.Scheme + "://" + l.Bucket
	}
	return l.Scheme + "://" + strings.TrimPrefix(l.Endpoint, "http://") + "/" + l.Bucket
}

// key is the key of a name below the location.
func (l Location) key(name string) string { return strings.Trim(l.below()+name, "/") }

// below is what the keys below the location begin with.
func (l Location) below() string {
	if l.Prefix == "" {
		return ""
	}
	return l.Prefix + "/"
}
