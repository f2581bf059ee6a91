package source

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"path/filepath"
	"sync"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
)

// Local finds files where the registry has read them: on this machine, or at
// the same place of a file system that both have.
type Local struct{}

var _ Source = Local{}

// Fetch implements [Source].
func (Local) Fetch(ctx context.Context, c Content, _ func(Progress)) (Files, error) {
	f := &localFiles{digest: c.Digest, vouched: c.Fingerprint}
	var err error
	if f.modelDir, err = pathOf(c.ModelURL); err != nil {
		return nil, err
	}
	if f.dir, err = pathOf(c.URL); err != nil {
		return nil, err
	}
	if err := f.Verify(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// pathOf returns the directory that a URL names.
func pathOf(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "file" || u.Host != "" || !filepath.IsAbs(u.Path) {
		return "", errs.New(errs.LoadFailed, "the model's files are at %q: a worker reads local directories, such as file:///models/digits/1, and object stores", text)
	}
	return u.Path, nil
}

type localFiles struct {
	modelDir, dir, digest string

	mu sync.Mutex
	// vouched is a fingerprint of which it is known that it stands for the
	// digest; guarded by mu.
	vouched string
}

// Directory has the files of a content lie in directories that they were put
// into; vouched is a fingerprint known to stand for the digest, if any is.
func Directory(modelDir, dir, digest, vouched string) Files {
	return &localFiles{modelDir: modelDir, dir: dir, digest: digest, vouched: vouched}
}

func (f *localFiles) Close() error { return nil }

func (f *localFiles) ModelDir() string { return f.modelDir }
func (f *localFiles) Dir() string      { return f.dir }

// Verify looks at what the file system says about the files, and digests them
// only if that says nothing.
func (f *localFiles) Verify(ctx context.Context) error {
	if f.digest == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	tree, err := modelfiles.List(ctx, modelfiles.Local{}, f.modelDir, f.dir)
	if err != nil {
		return f.unreadable(ctx, err)
	}
	fingerprint := tree.Fingerprint()
	if fingerprint != "" && fingerprint == f.vouched {
		return nil
	}
	digest, err := modelfiles.NewDigester(modelfiles.Local{}).Digest(ctx, tree)
	if err != nil {
		return f.unreadable(ctx, err)
	}
	if digest != f.digest {
		return f.changed(nil)
	}
	f.vouched = fingerprint
	return nil
}

func (f *localFiles) unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, modelfiles.ErrChanged) {
		return f.changed(err)
	}
	return errs.Wrap(errs.LoadFailed, err, "the model's files cannot be read: %v", err)
}

// changed says what to do in each mode of control: a worker knows of none.
func (f *localFiles) changed(cause error) error {
	return errs.Wrap(errs.FilesChanged, cause, "the files in %s changed since the registry read them: load the model again; "+
		"under poll control the next poll does, without model control restart the server", f.dir)
}
