// Package source provides the files of model versions to backends and verifies
// them: a backend reads the content that the registry has read, or the load fails.
//
// The worker knows the origin of files only as a [Source]. [Local] is the one for
// this host's disks. Package fetch has the one for object stores, which caches
// files by digest and provides its directories in the same way.
package source

import (
	"context"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Content names the files of a model version.
type Content struct {
	// ModelURL is the model's directory, URL the version's.
	ModelURL, URL string
	// Digest names the content, as package modelfiles does. If it is empty
	// there is nothing to hold the files against.
	Digest string
	// Fingerprint stands for the digest on the host that wrote it; it may be
	// empty.
	Fingerprint string
}

// Source finds files. It is safe for concurrent use.
type Source interface {
	// Fetch has the files of a content lie on this machine until they are
	// closed, and report progress where it takes long. Errors have the
	// reason files_changed if they are there and other ones, else load_failed,
	// cache_full or one of a store's, or are ctx's.
	Fetch(ctx context.Context, c Content, progress func(Progress)) (Files, error)
}

// Progress says, for people, what a fetch is about. Reason is set while
// something keeps it from going on.
type Progress struct {
	Text   string
	Reason errs.Reason
}

// Files are those of one content on this machine. They are safe for
// concurrent use.
type Files interface {
	// ModelDir is the model's directory, Dir the version's.
	ModelDir() string
	Dir() string
	// Verify reports whether the files are those of the content still, with
	// the errors of [Source.Fetch]: what was read before it returned nil was the
	// content.
	Verify(ctx context.Context) error
	// Close says that nobody reads the files any more. It is called once.
	Close() error
}
