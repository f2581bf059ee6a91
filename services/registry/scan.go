package registry

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/obs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// scans says when the repositories are read.
type scans struct {
	due   bool      // at next, which is now if it is zero
	next  time.Time //
	going bool
	// failures is how many scans in a row could not read all; uploadDeadline ends
	// the start's wait for uploads.
	failures       int
	uploadDeadline time.Time
	// seen holds, by key, models that a poll found and did not take yet,
	// since they may still be written.
	seen map[string]catalog.Model
	// ignored is what the last scan said of entries that are no models.
	ignored []string
}

// wait is when to look again: at most after d.
func (s *scans) wait(now time.Time, d time.Duration) time.Duration {
	if !s.due || s.going {
		return d
	}
	return max(0, min(d, s.next.Sub(now)))
}

func (s *scans) in(d time.Duration, now time.Time) { s.due, s.next = true, now.Add(d) }

// background has read run beside the loop, and then the loop run what it
// returns.
func (l *leadership) background(ctx context.Context, read func(context.Context) func()) {
	l.readers.Go(func() { // ends with the leadership at the latest
		then := read(ctx)
		select {
		case l.results <- then:
		case <-ctx.Done():
		}
	})
}

// scan starts to read the repositories if it is time to.
func (l *leadership) scan(ctx context.Context, now time.Time) {
	if !l.scans.due || l.scans.going || now.Before(l.scans.next) {
		return
	}
	l.scans.due, l.scans.going = false, true
	whole := l.modelsToRead()
	known := l.digests()
	l.background(ctx, func(ctx context.Context) func() {
		l.scanner.AddDigests(known)
		snap, err := l.scanner.Scan(ctx, whole)
		for whole != nil && err == nil {
			more, added := withSteps(whole, snap.Models)
			if !added {
				break
			}
			whole = more
			snap, err = l.scanner.Scan(ctx, whole)
		}
		return func() { l.scanEnded(snap, err, time.Now()) }
	})
}

// modelsToRead names the models of which all is read: nil is all of them. Under
// explicit control it is those that the start loads, those that wait for a worker
// and, for a new leader, those that serve. The others are only listed.
func (l *leadership) modelsToRead() func(infer.ModelID) bool {
	if l.cfg.Control != ControlExplicit || slices.Contains(l.cfg.LoadModels, everyModel) && !l.published {
		return nil
	}
	serving := make(map[infer.ModelID]bool)
	for _, entry := range l.models.entries {
		serving[publish.IDOf(entry.Value)] = !l.published && publish.Serving(entry.Value, publish.Observed{}) != nil
	}
	var start []string
	if !l.published {
		start = l.cfg.LoadModels
	}
	awaiting := l.awaiting // is replaced as a whole
	return func(id infer.ModelID) bool {
		return serving[id] || awaiting[id.Key()] || slices.Contains(start, id.Name)
	}
}

// scanEnded takes the result of a scan.
func (l *leadership) scanEnded(snap *catalog.Snapshot, err error, now time.Time) {
	l.scans.going = false
	if err != nil {
		l.log.Warn("repositories not read: what was read before stays", obs.Err(err)...)
		l.scans.in(l.scans.failed(l.cfg), now)
		return
	}
	if l.awaitsUploads(snap.Models, now) {
		l.scans.in(l.cfg.Retry, now)
		return
	}
	f := &scanResult{retained: make(map[string]bool)}
	again := false
	awaiting := make(map[string]bool)
	for _, m := range l.composed(l.withMissing(snap.Models)) {
		take, later := l.accepts(m)
		again = again || later
		if take {
			f.models = append(f.models, m)
			l.implicit[m.ID().Key()] = l.cfg.Control == ControlExplicit && !l.published && !slices.Contains(l.cfg.LoadModels, m.Name)
		} else {
			f.retained[m.ID().Key()] = true
		}
		if m.Waiting {
			awaiting[m.ID().Key()] = true
		}
	}
	l.awaiting = awaiting
	l.retainLoaded(f)
	l.retainUnread(f, snap.Unread)
	l.logChanges(f.models)
	oddities := slices.Clone(snap.Ignored)
	for _, unread := range snap.Unread {
		oddities = append(oddities, unread.Cause)
	}
	l.logIgnored(oddities)
	l.scanned = f
	switch {
	case len(snap.Unread)+len(awaiting) > 0 || slices.ContainsFunc(f.models, func(m catalog.Model) bool { return m.Unread }):
		l.scans.in(l.scans.failed(l.cfg), now)
		return
	case again:
		l.scans.in(max(l.cfg.FileQuietPeriod/2, l.cfg.Retry), now)
	case l.cfg.Control != ControlNone:
		l.scans.in(l.cfg.poll(), now)
	}
	l.scans.failures = 0
}

// failed counts a failure to read and says how long to wait after it: longer
// after each, up to the time between polls.
func (s *scans) failed(cfg Config) time.Duration {
	s.failures = min(s.failures+1, 16)
	return min(cfg.Retry<<(s.failures-1), max(cfg.poll(), cfg.Retry))
}

// startUploadPeriods is how many times ObjectQuietPeriod the start waits for
// uploads. After that the others are published without them.
const startUploadPeriods = 5

// awaitsUploads reports whether the start waits for models that are still being uploaded.
func (l *leadership) awaitsUploads(models []catalog.Model, now time.Time) bool {
	if l.published || !slices.ContainsFunc(models, func(m catalog.Model) bool { return m.Uploading }) {
		return false
	}
	if l.scans.uploadDeadline.IsZero() {
		l.log.Info("models are arriving in a store: the start waits until they are there", zap.Duration("at_most", startUploadPeriods*l.cfg.ObjectQuietPeriod))
		l.scans.uploadDeadline = now.Add(startUploadPeriods * l.cfg.ObjectQuietPeriod)
	}
	return now.Before(l.scans.uploadDeadline)
}

// digests are those of the models' versions by their fingerprints.
func (l *leadership) digests() map[string]string {
	known := make(map[string]string)
	for _, entry := range l.models.entries {
		for _, versions := range [][]*nereidv1.ModelVersion{entry.Value.GetVersions(), entry.Value.GetPrevious().GetVersions()} {
			for _, v := range versions {
				if v.GetFingerprint() != "" {
					known[v.GetFingerprint()] = v.GetDigest()
				}
			}
		}
	}
	return known
}

// withMissing adds what the start should load and no repository has.
func (l *leadership) withMissing(models []catalog.Model) []catalog.Model {
	if l.published || slices.Contains(l.cfg.LoadModels, everyModel) {
		return models
	}
	for _, name := range l.cfg.LoadModels {
		if !slices.ContainsFunc(models, func(m catalog.Model) bool { return m.Name == name }) {
			models = append(models, catalog.Model{Name: name, Problem: unknownModel(name).Msg})
		}
	}
	return models
}

// accepts decides whether a model is taken as it was found, and whether to look
// at it again soon.
func (l *leadership) accepts(m catalog.Model) (take, later bool) {
	key := m.ID().Key()
	old := l.models.entries[key].Value
	if l.operations.running[key] != nil {
		return false, false
	}
	if m.Waiting {
		return old == nil || publish.Serving(old, publish.Observed{}) == nil, true
	}
	if l.cfg.Control == ControlExplicit {
		return l.acceptsExplicit(m, old), false
	}
	if l.barred(m, old) {
		return false, false
	}
	if m.Uploading || m.Unread {
		unserved := old == nil || publish.Serving(old, publish.Observed{}) == nil
		return unserved && (m.Unread || !l.published), true
	}
	if m.Changing && l.published && (old == nil || !sameModel(m, old)) {
		seen, known := l.scans.seen[key]
		l.scans.seen[key] = m
		return known && m.Problem == "" && sameContents(seen, m), true
	}
	delete(l.scans.seen, key)
	return true, m.Changing && m.Torn
}

// acceptsExplicit takes, at the start, what is to be loaded and what served
// before; afterwards only names that are new. What was loaded or unloaded on
// request stays.
func (l *leadership) acceptsExplicit(m catalog.Model, old *nereidv1.ModelValue) bool {
	if old == nil {
		return true
	}
	if old.GetUnloaded() && !l.published {
		return false
	}
	if l.awaiting[m.ID().Key()] && old.GetProblem() != "" && !old.GetOverridden() && !old.GetUnloaded() {
		return true // a worker has completed its configuration
	}
	if l.published || old.GetOverridden() {
		return len(old.GetVersions()) == 0 && old.GetProblem() == "" && m.Config == nil && m.Problem == ""
	}
	return len(old.GetVersions()) == 0 || publish.Serving(old, publish.Observed{}) != nil
}

// retainLoaded keeps the values of models that the scan did not find and that are
// nevertheless in use: under explicit control until they are unloaded. What a
// start with the other namespacing has left behind is not in use.
func (l *leadership) retainLoaded(f *scanResult) {
	if l.cfg.Control != ControlExplicit {
		return
	}
	for key, entry := range l.models.entries {
		if (entry.Value.GetNamespace() != "") != l.cfg.Namespacing.On && !entry.Value.GetOverridden() {
			continue
		}
		if len(entry.Value.GetVersions()) > 0 || entry.Value.GetProblem() != "" || l.operations.running[key] != nil {
			f.retained[key] = f.retained[key] || !slices.ContainsFunc(f.models, func(m catalog.Model) bool { return m.ID().Key() == key })
		}
	}
	for key, held := range f.retained {
		if !held {
			delete(f.retained, key)
		}
	}
}

// retainUnread keeps the values of models of repositories that could not be
// listed: a listing of long ago, as a standby has that begins to lead, does not
// show which models are gone.
func (l *leadership) retainUnread(f *scanResult, unread []catalog.Unread) {
	if len(unread) == 0 {
		return
	}
	found := make(map[string]bool, len(f.models))
	for i := range f.models {
		found[f.models[i].ID().Key()] = true
	}
	for key, entry := range l.models.entries {
		within := func(u catalog.Unread) bool { return strings.HasPrefix(entry.Value.GetUrl(), u.Repository+"/") }
		if !found[key] && slices.ContainsFunc(unread, within) {
			f.retained[key] = true
		}
	}
}

// logChanges logs the problems of models that are new or not as they were.
func (l *leadership) logChanges(models []catalog.Model) {
	var news []catalog.Model
	for _, m := range models {
		if old := l.models.entries[m.ID().Key()].Value; !l.published || old == nil || !sameModel(m, old) {
			news = append(news, m)
		}
	}
	logProblems(l.log, news)
}

// logIgnored logs what is new among the entries that are no models.
func (l *leadership) logIgnored(ignored []string) {
	for _, text := range ignored {
		if !slices.Contains(l.scans.ignored, text) {
			l.log.Warn("repository has an oddity", zap.String("cause", text))
		}
	}
	l.scans.ignored = ignored
}

// sameModel reports whether a value is that of the generation that was found.
func sameModel(m catalog.Model, v *nereidv1.ModelValue) bool {
	if m.Problem != "" {
		return m.Problem == v.GetProblem() || m.Problem == v.GetFailure()
	}
	labels := func(packed []byte, v *nereidv1.ClassLabels) bool { return bytes.Equal(packed, v.GetGzip()) }
	if !proto.Equal(m.Config, v.GetConfig()) || !maps.EqualFunc(m.Labels, v.GetClassLabels(), labels) {
		return false
	}
	wanted := slices.DeleteFunc(slices.Clone(v.GetVersions()), func(v *nereidv1.ModelVersion) bool {
		return v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_UNLOADED
	})
	return slices.EqualFunc(m.Versions, wanted, func(found catalog.Version, v *nereidv1.ModelVersion) bool {
		return v.GetVersion() == found.Number && v.GetDigest() == found.Digest
	})
}

func sameContents(a, b catalog.Model) bool {
	same := slices.EqualFunc(a.Versions, b.Versions, func(a, b catalog.Version) bool {
		a.Fingerprint, b.Fingerprint = "", "" // of one content, when it is older
		return a == b
	})
	return same && proto.Equal(a.Config, b.Config) && maps.EqualFunc(a.Labels, b.Labels, bytes.Equal)
}
