package blob

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"strings"
)

// store reads and writes one bucket. It is safe for concurrent use.
type store interface {
	// list returns a page of the objects whose keys begin with prefix, in the order
	// of their keys, and the token of the next page. The token is empty for the
	// first page and after the last. Names are whole keys; an ETag is empty where
	// the store has none.
	list(ctx context.Context, prefix, token string) (page []Object, next string, err error)
	// read reads length bytes of an object from offset on. It fails if the object
	// has another ETag than tag, unless tag is empty. served is the ETag of the bytes
	// that are read; empty where the store is known to heed the condition.
	read(ctx context.Context, key, tag string, offset, length int64) (body io.ReadCloser, served string, err error)
	// write writes an object, which is there when it returns no error, and not before.
	write(ctx context.Context, key string, content io.Reader) error
}

// digester is a store that keeps the digests of some objects.
type digester interface {
	sha256(ctx context.Context, key, tag string) (sum [sha256.Size]byte, known bool)
}

// provider is one kind of store. A store is added by a file here with its
// provider, and a line in providers.
type provider struct {
	// scheme begins the URLs, forms says how they are written.
	scheme, forms string
	// parse sets, from what follows the scheme, all of a location but its scheme,
	// and reports whether it names a place.
	parse func(l *Location, rest string) bool
	// base is the URL of a location's bucket.
	base func(l Location) string
	// credential reads an entry of the file of credentials; nil if the store needs
	// none.
	credential func(entry json.RawMessage) (credential, error)
	// open opens a bucket with the credentials that are given, or else those of the
	// environment. anonymous says that it found none.
	open func(ctx context.Context, s *Stores, at Location, given credential) (b store, anonymous bool, err error)
	// rights are what credentials must allow.
	rights string
	// response reads what the store said out of an error; nil if it says nothing.
	response func(err error) (r response, ok bool)
}

func providers() []provider {
	return []provider{s3Store(), gcsStore(), azureStore(), directory()}
}

// providerOf returns the provider of a scheme.
func providerOf(scheme string) (provider, bool) {
	for _, p := range providers() {
		if p.scheme == scheme {
			return p, true
		}
	}
	return provider{}, false
}

// urlForms lists how the URLs of all stores are written.
func urlForms() string {
	var forms []string
	for _, p := range providers() {
		if p.scheme != directoryScheme {
			forms = append(forms, p.forms)
		}
	}
	return strings.Join(forms, ", ")
}
