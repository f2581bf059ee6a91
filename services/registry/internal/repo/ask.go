package repo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"sync"

	"github.com/nereid-serving/nereid/libs/control"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// Ask has a worker run the code of a model that completes its own configuration.
// An error that may be tried again says that none can now; unsupported, that no
// worker that is there has the backend.
type Ask func(context.Context, control.Draft) ([]byte, error)

// completes is what a model's file has in it where its code completes
// configurations, and maxCode up to how many bytes a file is searched for it.
const (
	completes = "auto_complete_config"
	maxCode   = 1 << 20
)

// ask has the code of a version complete the model's configuration, which is of
// the kind that modelconfig.Completion asks for. One with all inputs and outputs
// stays as it is if no file of the version says that there is such code: a
// process is not started for nothing.
func (s *reader) ask(ctx context.Context, m *catalog.Model, dir string, trees map[int64]listed) func(int64, []byte, bool) ([]byte, error) {
	if s.asked == nil {
		return nil
	}
	return func(version int64, config []byte, tensors bool) ([]byte, error) {
		files := trees[version]
		if files.err != nil {
			return nil, files.err
		}
		if tensors && !mentions(s.options.from, files.tree.Named(".py"), completes) {
			return config, nil
		}
		if s.options.Shallow {
			return s.asked(ctx, control.Draft{Model: m.ID().Version(version, 0), Config: config})
		}
		digest, err := s.digest(ctx, files.tree)
		if err != nil {
			s.noteRead(err)
			return nil, err
		}
		completed, err := s.outcomes.of(digest, config, s.again, func() ([]byte, error) {
			completed, err := s.asked(ctx, control.Draft{
				Model: m.ID().Version(version, 0), Config: config, ModelURL: m.URL, URL: s.options.from.URL(versionDir(dir, version)),
				Digest: digest, Fingerprint: files.tree.Fingerprint(),
			})
			s.noteRead(err)
			s.observed.waiting = s.observed.waiting || err != nil && errs.Of(err).Retryable()
			return completed, err
		})
		if errs.Of(err) == errs.Unsupported {
			return config, nil // the load says what is missing, of each version
		}
		return completed, err
	}
}

// mentions reports whether a file has the word in it. One that cannot be read, or
// is too long to look, may have it.
func mentions(from Files, paths []string, word string) bool {
	for _, path := range paths {
		file, err := from.Open(path)
		if err != nil {
			return true
		}
		text, err := io.ReadAll(io.LimitReader(file, maxCode))
		_ = file.Close() // it was only read
		if err != nil || len(text) == maxCode || bytes.Contains(text, []byte(word)) {
			return true
		}
	}
	return false
}

// transient reports whether a failure says nothing of the model.
func transient(err error) bool {
	return err != nil && (errs.Of(err).Retryable() || errs.Of(err) == errs.Unsupported || fromStore(err) || !errs.Classified(err))
}

// maxOutcomes bounds how many completed configurations are kept.
const maxOutcomes = 4096

// outcomes are what the code of contents has made of configurations, and how it
// has failed. They are safe for concurrent use.
type outcomes struct {
	mu    sync.Mutex
	known map[string]outcome // guarded by mu
}

type outcome struct {
	config []byte
	err    error
}

func newOutcomes() *outcomes { return &outcomes{known: make(map[string]outcome)} }

// of returns what ask returns, or has returned for the same content and
// configuration: again has it asked anew if that was a failure.
func (o *outcomes) of(digest string, config []byte, again bool, ask func() ([]byte, error)) ([]byte, error) {
	sum := sha256.Sum256(config)
	key := digest + " " + hex.EncodeToString(sum[:])
	o.mu.Lock()
	was, known := o.known[key]
	o.mu.Unlock()
	if known && (was.err == nil || !again) {
		return was.config, was.err
	}
	completed, err := ask()
	if transient(err) {
		return completed, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.known) == maxOutcomes {
		clear(o.known)
	}
	o.known[key] = outcome{completed, err}
	return completed, err
}

// noteRead takes in what an error says about the reading of a model.
func (s *reader) noteRead(err error) {
	s.observed.torn = s.observed.torn || errors.Is(err, modelfiles.ErrChanged) || errs.Of(err) == errs.FilesChanged
	s.observed.unread = s.observed.unread || fromStore(err)
}
