package blob

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/googleapi"
)

const (
	gcsVariable = "GOOGLE_APPLICATION_CREDENTIALS"
	gcsScope    = "https://www.googleapis.com/auth/devstorage.read_only"
)

// gcsStore is Google Cloud Storage. The SDK reads from another server if
// STORAGE_EMULATOR_HOST names one.
func gcsStore() provider {
	return provider{
		scheme: "gs",
		forms:  "gs://bucket/path",
		parse:  (*Location).bucketAndPrefix,
		base:   func(l Location) string { return "gs://" + l.Bucket },
		credential: func(entry json.RawMessage) (c credential, err error) {
			return c, json.Unmarshal(entry, &c.file)
		},
		open: openGCS,
		etag: func(o *blob.ListObject) string {
			var attrs storage.ObjectAttrs
			if !o.As(&attrs) {
				return ""
			}
			return strconv.FormatInt(attrs.Generation, 10)
		},
		onlyIf: func(as func(any) bool, tag string) error {
			var object **storage.ObjectHandle
			if !as(&object) {
				return nil
			}
			generation, err := strconv.ParseInt(tag, 10, 64)
			if err != nil {
				return err
			}
			*object = (*object).Generation(generation)
			return nil
		},
		rights: "storage.objects.list and storage.objects.get",
		response: func(err error) (r response, ok bool) {
			var e *googleapi.Error
			if !errors.As(err, &e) {
				return r, false
			}
			r = response{status: e.Code, text: short(e.Message)}
			if len(e.Errors) > 0 {
				r.code = e.Errors[0].Reason
			}
			return r, true
		},
	}
}

func openGCS(ctx context.Context, s *Stores, b *bucket, at Location, given credential) error {
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
		return (&Dir{bucket: b, at: at}).wrapError(ctx, "open", err)
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
