package core

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
	"github.com/nereid-serving/nereid/services/registry/core/publish"
)

// scans says when the repositories are read, and what was found and is not published yet.
type scans struct {
	due   bool // at next
	next  time.Time
	going bool
	// failures is how many scans in a row could not read all; uploadDeadline ends the start's
	// wait for uploads.
	failures       int
	uploadDeadline time.Time
	// seen holds, by key, models that a poll found and did not take yet, since they may still
	// be written.
	seen map[string]catalog.Model
	// ignored is what the last scan reported of entries that are no models.
	ignored []string
	// awaiting are the keys of models that no worker could complete in the last scan.
	awaiting map[string]bool
	found    *found // nil if there is nothing new
}

// found is what a scan has found.
type found struct {
	models []catalog.Model
	// retained are the keys of models whose values stay as they are.
	retained map[string]bool
}

func newScans() scans { return scans{due: true, seen: make(map[string]catalog.Model)} }

func (s *scans) at(t time.Time) { s.due, s.next = true, t }

// pause counts a failure to read and returns how long to wait after it: longer after each, up
// to the time between polls.
func (s *scans) pause(cfg *Config) time.Duration {
	s.failures = min(s.failures+1, 16)
	return min(cfg.Retry<<(s.failures-1), max(cfg.PollEvery, cfg.Retry))
}

// scanForCompletion scans at once where models wait for a worker that completes them.
func (c *Core) scanForCompletion() {
	if len(c.scans.awaiting) > 0 {
		c.scans.at(c.now)
	}
}

// startScan has the repositories be read if it is time to.
func (c *Core) startScan() {
	if !c.scans.due || c.scans.going || c.now.Before(c.scans.next) {
		return
	}
	c.scans.due, c.scans.going = false, true
	c.out.Scan = c.whatToScan()
}

// whatToScan names the models of which all is read. Under explicit control it is those that
// the start loads, those that wait for a worker and, for a new leader, those that serve. The
// others are only listed.
func (c *Core) whatToScan() *Scan {
	s := &Scan{Whole: make(map[infer.ModelID]bool), ByName: make(map[string]bool), Digests: make(map[string]string)}
	s.All = !c.cfg.Explicit || c.cfg.LoadAll && !c.published
	for k, e := range c.models.entries {
		for _, versions := range [][]*nereidv1.ModelVersion{e.value.GetVersions(), e.value.GetPrevious().GetVersions()} {
			for _, v := range versions {
				if v.GetFingerprint() != "" {
					s.Digests[v.GetFingerprint()] = v.GetDigest()
				}
			}
		}
		if c.scans.awaiting[k.Name] || !c.published && publish.Serving(e.value, publish.Observed{}) != nil {
			s.Whole[infer.ParseModelID(k.Name)] = true
		}
	}
	if !c.published {
		for _, name := range c.cfg.LoadModels {
			s.ByName[name] = true
		}
	}
	return s
}

// scanned takes the result of a scan.
func (c *Core) scanned(e Scanned) {
	c.scans.going = false
	if e.Err != nil {
		c.note(Warn, "repositories not read: what was read before stays", field("reason", string(errs.Of(e.Err))), field("error", e.Err))
		c.scans.at(c.now.Add(c.scans.pause(&c.cfg)))
		return
	}
	snap := e.Snapshot
	if c.awaitsUploads(snap.Models) {
		c.scans.at(c.now.Add(c.cfg.Retry))
		return
	}
	f := &found{retained: make(map[string]bool)}
	again := false
	awaiting := make(map[string]bool)
	for _, m := range c.composed(c.withMissing(snap.Models)) {
		key := m.ID().Key()
		take, later := c.accepts(m)
		again = again || later
		if take {
			f.models = append(f.models, m)
			c.operations.implicit[key] = c.cfg.Explicit && !c.published && !c.cfg.LoadAll && !slices.Contains(c.cfg.LoadModels, m.Name)
		} else {
			f.retained[key] = true
		}
		if m.Waiting {
			awaiting[key] = true
		}
	}
	c.scans.awaiting = awaiting
	maps.DeleteFunc(c.scans.seen, func(key string, _ catalog.Model) bool {
		return !slices.ContainsFunc(snap.Models, func(m catalog.Model) bool { return m.ID().Key() == key })
	})
	taken := make(map[string]bool, len(f.models))
	for i := range f.models {
		taken[f.models[i].ID().Key()] = true
	}
	c.retainLoaded(f, taken)
	c.retainUnread(f, taken, snap.Unread)
	c.noteFound(f.models, snap)
	c.scans.found = f
	switch {
	case len(snap.Unread)+len(awaiting) > 0 || slices.ContainsFunc(f.models, func(m catalog.Model) bool { return m.Unread }):
		c.scans.at(c.now.Add(c.scans.pause(&c.cfg)))
		return
	case again:
		c.scans.at(c.now.Add(max(c.cfg.FileQuietPeriod/2, c.cfg.Retry)))
	case c.cfg.Poll || c.cfg.Explicit:
		c.scans.at(c.now.Add(c.cfg.PollEvery))
	}
	c.scans.failures = 0
}

// startUploadPeriods is how many times ObjectQuietPeriod the start waits for uploads. After
// that the others are published without them.
const startUploadPeriods = 5

// awaitsUploads reports whether the start waits for models that are still being uploaded.
func (c *Core) awaitsUploads(models []catalog.Model) bool {
	if c.published || !slices.ContainsFunc(models, func(m catalog.Model) bool { return m.Uploading }) {
		return false
	}
	if c.scans.uploadDeadline.IsZero() {
		most := startUploadPeriods * c.cfg.ObjectQuietPeriod
		c.note(Info, "models are arriving in a store: the start waits until they are there", field("at_most", most))
		c.scans.uploadDeadline = c.now.Add(most)
	}
	return c.now.Before(c.scans.uploadDeadline)
}

// withMissing adds what the start should load and no repository has.
func (c *Core) withMissing(models []catalog.Model) []catalog.Model {
	if c.published || c.cfg.LoadAll {
		return models
	}
	for _, name := range c.cfg.LoadModels {
		if !slices.ContainsFunc(models, func(m catalog.Model) bool { return m.Name == name }) {
			models = append(models, catalog.Model{Name: name, Problem: UnknownModel(name).Msg})
		}
	}
	return models
}

// accepts decides whether a model is taken as it was found, and whether to look at it again
// soon.
func (c *Core) accepts(m catalog.Model) (take, later bool) {
	key := m.ID().Key()
	old := c.model(key)
	unserved := old == nil || publish.Serving(old, publish.Observed{}) == nil
	switch {
	case c.operations.running[key] != nil:
		return false, false
	case m.Waiting:
		return unserved, true
	case c.cfg.Explicit:
		return c.acceptsExplicit(m, old), false
	case c.barred(m, old):
		return false, false
	case m.Uploading || m.Unread:
		return unserved && (m.Unread || !c.published), true
	case m.Changing && c.published && (old == nil || !SameModel(m, old)):
		seen, known := c.scans.seen[key]
		c.scans.seen[key] = m
		return known && m.Problem == "" && sameContents(seen, m), true
	}
	delete(c.scans.seen, key)
	return true, m.Changing && m.Torn
}

// acceptsExplicit takes, at the start, what is to be loaded and what served before;
// afterwards only names that are new. What was loaded or unloaded on request stays.
func (c *Core) acceptsExplicit(m catalog.Model, old *nereidv1.ModelValue) bool {
	switch {
	case old == nil:
		return true
	case old.GetUnloaded() && !c.published:
		return false
	case c.scans.awaiting[m.ID().Key()] && old.GetProblem() != "" && !old.GetOverridden() && !old.GetUnloaded():
		return true // a worker has completed its configuration
	case c.published || old.GetOverridden():
		return len(old.GetVersions()) == 0 && old.GetProblem() == "" && m.Config == nil && m.Problem == ""
	}
	return len(old.GetVersions()) == 0 || publish.Serving(old, publish.Observed{}) != nil
}

// retainLoaded retains the values of models that the scan did not find and that are
// nevertheless in use: under explicit control until they are unloaded. What a start with the
// other namespacing has left behind is not in use.
func (c *Core) retainLoaded(f *found, taken map[string]bool) {
	if !c.cfg.Explicit {
		return
	}
	for k, e := range c.models.entries {
		if (e.value.GetNamespace() != "") != c.cfg.Namespacing && !e.value.GetOverridden() {
			continue
		}
		if len(e.value.GetVersions()) > 0 || e.value.GetProblem() != "" || c.operations.running[k.Name] != nil {
			f.retained[k.Name] = f.retained[k.Name] || !taken[k.Name]
		}
	}
	maps.DeleteFunc(f.retained, func(_ string, retained bool) bool { return !retained })
}

// retainUnread retains the values of models of repositories that could not be listed: a
// listing of long ago, as a standby has that begins to lead, does not show which models are
// gone.
func (c *Core) retainUnread(f *found, taken map[string]bool, unread []catalog.Unread) {
	if len(unread) == 0 {
		return
	}
	for k, e := range c.models.entries {
		within := func(u catalog.Unread) bool { return strings.HasPrefix(e.value.GetUrl(), u.Repository+"/") }
		if !taken[k.Name] && slices.ContainsFunc(unread, within) {
			f.retained[k.Name] = true
		}
	}
}

// noteFound notes the problems of models that are new or not as they were, and what is new
// among the entries that are no models.
func (c *Core) noteFound(models []catalog.Model, snap *catalog.Snapshot) {
	for _, m := range models {
		if old := c.model(m.ID().Key()); !c.published || old == nil || !SameModel(m, old) {
			c.noteProblems(m)
		}
	}
	ignored := slices.Clone(snap.Ignored)
	for _, unread := range snap.Unread {
		ignored = append(ignored, unread.Cause)
	}
	for _, text := range ignored {
		if !slices.Contains(c.scans.ignored, text) {
			c.note(Warn, "repository has an oddity", field("cause", text))
		}
	}
	c.scans.ignored = ignored
}

// noteProblems notes what clients will see as unavailable, with all that is known of the
// cause.
func (c *Core) noteProblems(m catalog.Model) {
	id := field("model", m.ID())
	if m.Problem != "" {
		cause := m.Problem
		if len(m.Problems) > 0 {
			cause = m.Problems.Error()
		}
		c.note(Warn, "model cannot be served", id, field("cause", cause))
	}
	for _, warning := range m.Warnings {
		c.note(Warn, "model has an oddity", id, field("cause", warning))
	}
	for _, v := range m.Versions {
		if v.Problem != "" {
			c.note(Warn, "model version cannot be served", id, field("version", v.Number), field("cause", v.Problem))
		}
	}
}

// publish brings the bucket models to hold what was found.
func (c *Core) publish() {
	f := c.scans.found
	if f == nil {
		return
	}
	stored := make(publish.Models, len(c.models.entries))
	for k, e := range c.models.entries {
		if !f.retained[k.Name] {
			stored[k.Name] = publish.Model{Value: e.value, Revision: e.revision}
		}
	}
	writes := publish.DiffModels(&catalog.Snapshot{Models: f.models}, stored, c.models.revision, c.knowledge(false))
	for _, w := range writes {
		c.writeFound(w)
	}
	if len(writes) == 0 && c.models.revision == 0 {
		c.write(Touch{}, nil)
	}
	c.whenDone(func() {
		if len(writes) > 0 || !c.published {
			c.note(Info, "models published", field("models", len(f.models)), field("written", len(writes)))
		}
		c.published, c.scans.found = true, nil
		c.forgetRemoved()
	})
}

// forgetRemoved forgets what was known of models that are there no more.
func (c *Core) forgetRemoved() {
	gone := func(key string) bool { _, there := c.models.entries[Key{Name: key}]; return !there }
	maps.DeleteFunc(c.operations.implicit, func(key string, _ bool) bool { return gone(key) })
	digests := make(map[string]bool)
	for _, e := range c.models.entries {
		for _, v := range slices.Concat(e.value.GetVersions(), e.value.GetPrevious().GetVersions()) {
			digests[v.GetDigest()] = true
		}
	}
	maps.DeleteFunc(c.memory.measured, func(digest string, _ int64) bool { return !digests[digest] })
}

// writeFound writes a model as it was found, and records whether it loads for the first time.
func (c *Core) writeFound(w publish.ModelWrite) {
	served := publish.Serving(c.model(w.Key), c.knowledge(false)) != nil
	if w.Value == nil {
		c.write(Write{Bucket: Models, Key: Key{Name: w.Key}, Replaces: w.Replaces}, nil)
		return
	}
	c.write(Write{Bucket: Models, Key: Key{Name: w.Key}, Value: w.Value, Replaces: w.Replaces}, func() {
		serving := publish.Serving(w.Value, publish.Observed{})
		c.rollouts.firstLoad(w.Key, !served && len(w.Value.GetVersions()) > 1 && serving != nil)
	})
}

// markSynced marks the buckets as those that hold all that is served, and where, once.
func (c *Core) markSynced() {
	if c.synced || !c.published {
		return
	}
	c.write(MarkSynced{Assignments}, nil)
	c.write(MarkSynced{Models}, nil)
	c.whenDone(func() { c.synced = true })
}

// announce announces the whole scan, once.
func (c *Core) announce() {
	if c.announced || !c.published {
		return
	}
	revision := c.models.revision
	c.write(Announce{revision}, func() {
		c.announced = true
		c.note(Info, "scan announced", field("revision", revision))
	})
}

// writePools brings the bucket pools to hold what is configured.
func (c *Core) writePools() {
	if c.poolsWritten {
		return
	}
	wanted := c.cfg.Pools.Values()
	for _, k := range slices.SortedFunc(maps.Keys(c.pools.entries), func(a, b Key) int { return strings.Compare(a.Name, b.Name) }) {
		if wanted[k.Name] == nil {
			c.write(Write{Bucket: Pools, Key: k, Replaces: c.pools.entries[k].revision}, nil)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if e := c.pools.entries[Key{Name: name}]; !proto.Equal(e.value, wanted[name]) {
			c.write(Write{Bucket: Pools, Key: Key{Name: name}, Value: wanted[name], Replaces: e.revision}, nil)
		}
	}
	c.whenDone(func() { c.poolsWritten = true })
}

// SameModel reports whether a value is that of the generation that was found.
func SameModel(m catalog.Model, v *nereidv1.ModelValue) bool {
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
