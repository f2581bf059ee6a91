package blob

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"strings"

	"gocloud.dev/blob"
)

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
	// open sets a bucket's Bucket, and anonymous if it found no credentials. It
	// uses those that are given, or else those of the environment.
	open func(ctx context.Context, s *Stores, b *bucket, at Location, given credential) error
	// etag names a listed object's content; empty where the store does not.
	etag func(o *blob.ListObject) string
	// onlyIf makes a read fail if the object has another ETag.
	onlyIf func(as func(any) bool, tag string) error
	// served is the ETag of what is being read; empty where the store does not
	// say. nil if the store is known to heed the condition.
	served func(r *blob.Reader) string
	// sha256 is an object's digest where the store keeps it; nil if none does.
	sha256 func(ctx context.Context, d *Dir, o Object) (sum [sha256.Size]byte, known bool)
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
