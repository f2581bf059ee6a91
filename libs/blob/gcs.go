package blob

import (
	"context"
	"os"

	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2/google"
)

const (
	gcsVariable = "GOOGLE_APPLICATION_CREDENTIALS"
	gcsScope    = "https://www.googleapis.com/auth/devstorage.read_only"
)

func (s *Stores) openGCS(ctx context.Context, b *bucket, at Location, given credential) error {
	found, err := gcsCredentials(ctx, given)
	if err != nil {
		return unusable(at, err, "see the file that "+gcsVariable+" or "+credentialVariable+" names")
	}
	b.anonymous = found == nil
	client := gcp.NewAnonymousHTTPClient(s.client.Transport)
	if found != nil {
		if client, err = gcp.NewHTTPClient(s.client.Transport, gcp.CredentialsTokenSource(found)); err != nil {
			return unusable(at, err, "see the file that "+gcsVariable+" names")
		}
	}
	// The client outlives the call that opens it.
	b.Bucket, err = gcsblob.OpenBucket(context.WithoutCancel(ctx), client, at.Bucket, nil)
	if err != nil {
		return (&Dir{bucket: b, at: at}).explain(ctx, "open", err)
	}
	return nil
}

// gcsCredentials finds those that were given, or those of the environment; nil
// if there are none.
func gcsCredentials(ctx context.Context, given credential) (*google.Credentials, error) {
	background := context.WithoutCancel(ctx) // tokens are renewed later
	if given.file != "" {
		text, err := os.ReadFile(given.file)
		if err != nil {
			return nil, err
		}
		return google.CredentialsFromJSON(background, text, gcsScope) //nolint:staticcheck // the operator's own file, of any type
	}
	found, err := google.FindDefaultCredentials(background, gcsScope)
	if err == nil {
		return found, nil
	}
	if os.Getenv(gcsVariable) != "" {
		return nil, err
	}
	return nil, nil
}
