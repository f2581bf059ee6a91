package blob

import (
	"context"
	"path/filepath"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
)

const directoryScheme = "file"

// directory is a directory in place of a store.
func directory() provider {
	return provider{
		scheme: directoryScheme,
		forms:  "file:///path",
		parse: func(l *Location, rest string) bool {
			l.Bucket = filepath.Clean(rest)
			return filepath.IsAbs(rest)
		},
		base: func(l Location) string { return "file://" + l.Bucket },
		open: func(ctx context.Context, _ *Stores, b *bucket, at Location, _ credential) (err error) {
			b.Bucket, err = fileblob.OpenBucket(at.Bucket, nil)
			if err != nil {
				return (&Dir{bucket: b, at: at}).wrapError(ctx, "open", err)
			}
			return nil
		},
		etag:   func(*blob.ListObject) string { return "" },
		onlyIf: func(func(any) bool, string) error { return nil },
	}
}
