package repo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// uploadedLongAgo is how old the objects of a model must be for a first scan to take them
// as all there. It is more than the clocks of two machines should differ by.
const uploadedLongAgo = time.Minute

// firstSeen is when a model's objects were first seen as they are.
type firstSeen struct {
	stamp string
	since time.Time // zero if they were there long before
}

// cachedModel is what a model of a store was read as, while its objects had the
// stamp.
type cachedModel struct {
	stamp string
	model catalog.Model
}

// remote reads a model in a store, unless nothing about it has changed or more
// of it may come.
func (s *reader) remote(ctx context.Context, m *catalog.Model, dir string, config []byte) {
	stamp := s.stores.stampOf(dir)
	if s.stores.uploading(dir, stamp) && !s.options.Shallow {
		m.Uploading, m.Changing = true, true
		m.Problem = "the model's files are still arriving: it is read when the listing of " + dir + " stays the same"
		return
	}
	if known, ok := s.stores.cached(dir, stamp); ok && config == nil {
		*m = known
		return
	}
	s.read(ctx, m, dir, config)
	if m.Problem == "" {
		if err := s.incomplete(m); err != nil {
			s.observed.unread = s.observed.unread || fromStore(err)
			m.Config, m.Versions = nil, nil
			m.Problem, m.Problems = errs.From(err).Msg, problemsOf(err)
		}
	}
	m.Unread = s.observed.unread
	m.Changing = m.Torn || m.Unread || m.Waiting
	if config == nil && !m.Changing && ctx.Err() == nil {
		s.stores.store(dir, stamp, *m)
	}
}

// incomplete returns what is missing of what the model's configuration names:
// an upload that broke off, or one whose other objects are yet to come.
func (s *reader) incomplete(m *catalog.Model) error {
	from, d := s.options.from, backends.Get(m.Config.GetBackend())
	for _, v := range m.Versions {
		name := m.Config.GetDefaultModelFilename()
		if v.Problem != "" || name == "" || !d.FileRequired {
			continue
		}
		file := modelfiles.Join(v.URL, name)
		if _, err := from.Stat(file); err != nil {
			return problem("version %d of model '%s' is not complete: %s does not exist: upload it, before config.pbtxt if the server polls", v.Number, m.Name, file)
		}
		if d.Header == nil {
			continue
		}
		h, err := ReadHeader(from, d, file)
		if fromStore(err) {
			return err
		}
		if err != nil {
			continue // the worker knows better what is wrong with it
		}
		beside := modelfiles.Parent(file)
		if isDir(from, file) {
			beside = file
		}
		for _, weights := range h.External {
			if _, err := from.Stat(modelfiles.Join(beside, weights)); err != nil {
				return problem("version %d of model '%s' is not complete: its weights in %s do not exist: upload them", v.Number, m.Name, modelfiles.Join(beside, weights))
			}
		}
	}
	return nil
}

// fromStore reports whether an error is a store's, rather than a model's.
func fromStore(err error) bool {
	var e *errs.Error
	for errors.As(err, &e) {
		switch e.Reason {
		case errs.StoreDenied, errs.StoreNotFound, errs.StoreUnreachable, errs.StoreTruncated, errs.StoreThrottled, errs.FilesChanged:
			return true
		}
		err = e.Err
	}
	return false
}

// listingFailed notes that a repository in a store cannot be listed.
func listingFailed(root string, err error) error {
	return errs.Wrap(errs.Of(err), errs.From(err).Err, "model repository %s cannot be read: %s", root, strings.TrimPrefix(fmt.Sprint(errs.From(err).Msg), root+": "))
}
