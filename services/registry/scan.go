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
	"github.com/nereid-serving/nereid/services/registry/internal/publish"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

// scans says when the repositories are read.
type scans struct {
	due   bool      // at next, which is now if it is zero
	next  time.Time //
	going bool
	// failures is how many scans in a row could not read all; patience is until
	// when the start waits for models that arrive.
	failures int
	patience time.Time
	// seen holds, by key, models that a poll found and did not take yet,
	// since somebody may still write them.
	seen map[string]snapshot.Model
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
func (t *term) background(ctx context.Context, read func(context.Context) func()) {
	t.readers.Go(func() { // ends with the term at the latest
		then := read(ctx)
		select {
		case t.results <- then:
		case <-ctx.Done():
		}
	})
}

// scan starts to read the repositories if it is time to.
func (t *term) scan(ctx context.Context, now time.Time) {
	if !t.scans.due || t.scans.going || now.Before(t.scans.next) {
		return
	}
	t.scans.due, t.scans.going = false, true
	whole := t.wholly()
	known := t.digests()
	t.background(ctx, func(ctx context.Context) func() {
		t.scanner.Learn(known)
		snap, err := t.scanner.Scan(ctx, whole)
		return func() { t.scanned(snap, err, time.Now()) }
	})
}

// wholly names the models of which all is read: nil is all of them. Under
// explicit control it is those that the start loads and, for a new leader,
// those that serve. The others are only listed.
func (t *term) wholly() func(infer.ModelID) bool {
	if t.cfg.Control != ControlExplicit || slices.Contains(t.cfg.LoadModels, everyModel) && !t.published {
		return nil
	}
	serving := make(map[infer.ModelID]bool)
	for _, entry := range t.models.entries {
		serving[publish.IDOf(entry.Value)] = !t.published && publish.Serving(entry.Value, publish.Observed{}) != nil
	}
	var start []string
	if !t.published {
		start = t.cfg.LoadModels
	}
	return func(id infer.ModelID) bool { return serving[id] || slices.Contains(start, id.Name) }
}

// scanned takes the result of a scan.
func (t *term) scanned(snap *snapshot.Snapshot, err error, now time.Time) {
	t.scans.going = false
	if err != nil {
		t.log.Warn("repositories not read: what was read before stays", obs.Err(err)...)
		t.scans.in(t.scans.failed(t.cfg), now)
		return
	}
	if t.awaits(snap.Models, now) {
		t.scans.in(t.cfg.Retry, now)
		return
	}
	f := &finding{held: make(map[string]bool)}
	again := false
	for _, m := range t.withMissing(snap.Models) {
		take, later := t.takes(m)
		again = again || later
		if take {
			f.models = append(f.models, m)
		} else {
			f.held[m.ID().Key()] = true
		}
	}
	t.hold(f)
	t.holdUnread(f, snap.Unread)
	t.logChanges(f.models)
	oddities := slices.Clone(snap.Ignored)
	for _, unread := range snap.Unread {
		oddities = append(oddities, unread.Cause)
	}
	t.logIgnored(oddities)
	t.found = f
	switch {
	case len(snap.Unread) > 0 || slices.ContainsFunc(f.models, func(m snapshot.Model) bool { return m.Unread }):
		t.scans.in(t.scans.failed(t.cfg), now)
		return
	case again:
		t.scans.in(max(t.cfg.Settle/2, t.cfg.Retry), now)
	case t.cfg.Control != ControlNone:
		t.scans.in(t.cfg.Poll, now)
	}
	t.scans.failures = 0
}

// failed counts a failure to read and says how long to wait after it: longer
// after each, up to the time between polls.
func (s *scans) failed(cfg Config) time.Duration {
	s.failures = min(s.failures+1, 16)
	return min(cfg.Retry<<(s.failures-1), max(cfg.Poll, cfg.Retry))
}

// patientStart is how many times Arrive the start waits for models in stores
// whose objects arrive. After that the others are published without them.
const patientStart = 5

// awaits reports whether the start waits for models that are still arriving.
func (t *term) awaits(models []snapshot.Model, now time.Time) bool {
	if t.published || !slices.ContainsFunc(models, func(m snapshot.Model) bool { return m.Arriving }) {
		return false
	}
	if t.scans.patience.IsZero() {
		t.log.Info("models are arriving in a store: the start waits until they are there", zap.Duration("at_most", patientStart*t.cfg.Arrive))
		t.scans.patience = now.Add(patientStart * t.cfg.Arrive)
	}
	return now.Before(t.scans.patience)
}

// digests are those of the models' versions by their fingerprints.
func (t *term) digests() map[string]string {
	known := make(map[string]string)
	for _, entry := range t.models.entries {
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
func (t *term) withMissing(models []snapshot.Model) []snapshot.Model {
	if t.published || slices.Contains(t.cfg.LoadModels, everyModel) {
		return models
	}
	for _, name := range t.cfg.LoadModels {
		if !slices.ContainsFunc(models, func(m snapshot.Model) bool { return m.Name == name }) {
			models = append(models, snapshot.Model{Name: name, Problem: unknownModel(name).Msg})
		}
	}
	return models
}

// takes decides whether a model is taken as it was found, and whether to look
// at it again soon.
func (t *term) takes(m snapshot.Model) (take, later bool) {
	key := m.ID().Key()
	old := t.models.entries[key].Value
	if t.operations[key] != nil {
		return false, false
	}
	if t.cfg.Control == ControlExplicit {
		return t.takesExplicit(m, old), false
	}
	if refused := t.refused[key]; refused != nil && found(m, refused) && publish.Serving(old, t.knowledge(false)) != nil {
		return false, false // else its cause is better than that of what is gone
	}
	if m.Arriving || m.Unread {
		unserved := old == nil || publish.Serving(old, publish.Observed{}) == nil
		return unserved && (m.Unread || !t.published), true
	}
	if m.Unsettled && t.published && (old == nil || !found(m, old)) {
		seen, known := t.scans.seen[key]
		t.scans.seen[key] = m
		return known && m.Problem == "" && alike(seen, m), true
	}
	delete(t.scans.seen, key)
	return true, m.Unsettled && m.Torn
}

// takesExplicit takes, at the start, what is to be loaded and what served
// before; afterwards only names that are new. What was loaded or unloaded on
// request stays.
func (t *term) takesExplicit(m snapshot.Model, old *nereidv1.ModelValue) bool {
	if old == nil {
		return true
	}
	if t.published || old.GetOverridden() {
		return len(old.GetVersions()) == 0 && old.GetProblem() == "" && m.Config == nil && m.Problem == ""
	}
	return len(old.GetVersions()) == 0 || publish.Serving(old, publish.Observed{}) != nil
}

// hold keeps the values of models that the scan did not find and that are
// nevertheless in use: under explicit control until they are unloaded. What a
// start with the other namespacing has left behind is in nobody's use.
func (t *term) hold(f *finding) {
	if t.cfg.Control != ControlExplicit {
		return
	}
	for key, entry := range t.models.entries {
		if (entry.Value.GetNamespace() != "") != t.cfg.Namespacing && !entry.Value.GetOverridden() {
			continue
		}
		if len(entry.Value.GetVersions()) > 0 || entry.Value.GetProblem() != "" || t.operations[key] != nil {
			f.held[key] = f.held[key] || !slices.ContainsFunc(f.models, func(m snapshot.Model) bool { return m.ID().Key() == key })
		}
	}
	for key, held := range f.held {
		if !held {
			delete(f.held, key)
		}
	}
}

// holdUnread keeps the values of models of repositories that could not be
// listed: a listing of long ago, as a standby has that begins to lead, does not
// show which models are gone.
func (t *term) holdUnread(f *finding, unread []snapshot.Unread) {
	if len(unread) == 0 {
		return
	}
	found := make(map[string]bool, len(f.models))
	for i := range f.models {
		found[f.models[i].ID().Key()] = true
	}
	for key, entry := range t.models.entries {
		within := func(u snapshot.Unread) bool { return strings.HasPrefix(entry.Value.GetUrl(), u.Repository+"/") }
		if !found[key] && slices.ContainsFunc(unread, within) {
			f.held[key] = true
		}
	}
}

// logChanges logs the problems of models that are new or not as they were.
func (t *term) logChanges(models []snapshot.Model) {
	var news []snapshot.Model
	for _, m := range models {
		if old := t.models.entries[m.ID().Key()].Value; !t.published || old == nil || !found(m, old) {
			news = append(news, m)
		}
	}
	logProblems(t.log, news)
}

// logIgnored logs what is new among the entries that are no models.
func (t *term) logIgnored(ignored []string) {
	for _, text := range ignored {
		if !slices.Contains(t.scans.ignored, text) {
			t.log.Warn("repository has an oddity", zap.String("cause", text))
		}
	}
	t.scans.ignored = ignored
}

// found reports whether a value is that of the content that was found.
func found(m snapshot.Model, v *nereidv1.ModelValue) bool {
	if m.Problem != "" {
		return m.Problem == v.GetProblem() || m.Problem == v.GetFailure()
	}
	labels := func(packed []byte, v *nereidv1.ClassLabels) bool { return bytes.Equal(packed, v.GetGzip()) }
	if !proto.Equal(m.Config, v.GetConfig()) || !maps.EqualFunc(m.Labels, v.GetClassLabels(), labels) || len(m.Versions) != len(v.GetVersions()) {
		return false
	}
	for i, version := range m.Versions {
		if v.GetVersions()[i].GetVersion() != version.Number || v.GetVersions()[i].GetDigest() != version.Digest {
			return false
		}
	}
	return true
}

func alike(a, b snapshot.Model) bool {
	same := slices.EqualFunc(a.Versions, b.Versions, func(a, b snapshot.Version) bool {
		a.Fingerprint, b.Fingerprint = "", "" // of one content, when it is older
		return a == b
	})
	return same && proto.Equal(a.Config, b.Config) && maps.EqualFunc(a.Labels, b.Labels, bytes.Equal)
}
