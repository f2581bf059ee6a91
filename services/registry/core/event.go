package core

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/infer"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// Bucket is one of the store's buckets that the registry reads or writes.
type Bucket uint8

// The buckets. Keys of Assignments and Instances have an owner, which is a worker.
const (
	Models Bucket = iota
	Workers
	Instances
	Assignments
	Gateways
	Schedulers
	Leaders
	Pools
	bucketCount
)

// Key is a key of a bucket. Owner is empty where keys have none.
type Key struct{ Owner, Name string }

// Event is something that happened. Values in events are shared and never changed.
type Event interface{ event() }

// Changed is a change of a bucket: a value, or a key's end.
type Changed struct {
	Bucket Bucket
	Key    Key
	// Value is nil where the key has ended, and where its value cannot be read: then it is
	// there, and may be replaced.
	Value    proto.Message
	Revision uint64
	// Deleted is whether the key has ended; Expired that its lease has.
	Deleted, Expired bool
}

// CaughtUp says that all that a bucket held is known.
type CaughtUp struct {
	Bucket   Bucket
	Revision uint64
}

// Started ends the wait for the store's state at the start of a leadership. Models and
// Assignments are what the store has lost and is to hold again; both are empty where it has
// lost nothing.
type Started struct {
	Models      map[string]*nereidv1.ModelValue
	Assignments map[Key]*nereidv1.AssignmentValue
}

// Done has the results of the commands of the step before, one for each in their order. Those
// behind the first that failed were not executed, and have no result.
type Done struct{ Results []Result }

// Result is what a command came to. Revisions has one for each write.
type Result struct {
	Revisions []uint64
	// Errs has one for each write of the command, nil where it came through; a conflict is
	// marked by Conflict, since another writer has come before and its value follows as an event.
	Errs []error
	// Conflict is whether a write met a revision other than the one that it replaces.
	Conflict bool
}

// Scanned is the result of a [Scan]. Err is why the repositories could not be read.
type Scanned struct {
	Snapshot *catalog.Snapshot
	Err      error
}

// Requested is a load or unload that a caller waits for.
type Requested struct {
	// Caller names the request in its [Answer].
	Caller uint64
	Load   bool
	Model  infer.ModelID
	// Overrides is whether the caller gives a configuration or files for a load.
	Overrides bool
	// Dependents has an unloaded ensemble take with it what was loaded for it alone.
	Dependents bool
}

// WasRead is the result of a [Read]. Err is why there is no model.
type WasRead struct {
	Operation uint64
	Model     catalog.Model
	Err       error
}

// WorkersCanComplete says that a worker came that can complete configurations.
type WorkersCanComplete struct{}

// Tick says that time has passed.
type Tick struct{}

func (Changed) event()            {}
func (CaughtUp) event()           {}
func (Started) event()            {}
func (Done) event()               {}
func (Scanned) event()            {}
func (Requested) event()          {}
func (WasRead) event()            {}
func (WorkersCanComplete) event() {}
func (Tick) event()               {}

// Effects are what follows from an event.
type Effects struct {
	// Commands are executed in their order, up to the first that fails. Their results come
	// back as a [Done] before any other event.
	Commands []Command
	// Scan, if it is not nil, has the repositories be read; a [Scanned] follows.
	Scan  *Scan
	Reads []Read
	// Answers end requests.
	Answers []Answer
	Notes   []Note
	// Sweep, if it is not nil, names by URL the given files that are in use: others may go.
	Sweep map[string]bool
	// WorkersChanged is whether workers came, went or offer something else.
	WorkersChanged bool
	// Report is what others may see of the leadership; nil where it is as before.
	Report *Report
	// Wake is after what time the next step is due at the latest.
	Wake time.Duration
}

// Command is something to be written.
type Command interface{ command() }

// Write changes one key. A write without a Value deletes it.
type Write struct {
	Bucket Bucket
	Key    Key
	Value  proto.Message
	// Replaces is the revision that the key has; 0 if there is no such key.
	Replaces uint64
}

// Batch are writes to one bucket that may be executed in any order.
type Batch []Write

// MarkSynced marks a bucket as one that holds all that it should.
type MarkSynced struct{ Bucket Bucket }

// Announce says to everybody that the bucket models holds, from a revision on, what the
// repositories have.
type Announce struct{ Revision uint64 }

// Touch gives the bucket models, which is empty, a revision.
type Touch struct{}

func (Write) command()      {}
func (Batch) command()      {}
func (MarkSynced) command() {}
func (Announce) command()   {}
func (Touch) command()      {}

// Scan says what a scan reads.
type Scan struct {
	// All is whether all of every model is read. Else it is of those in Whole, and of those
	// that ByName names in any namespace; of the others only the names are listed.
	All    bool
	Whole  map[infer.ModelID]bool
	ByName map[string]bool
	// Digests are those of the known versions' files by their fingerprints.
	Digests map[string]string
}

// Reads reports whether all of a model is read.
func (s *Scan) Reads(id infer.ModelID) bool { return s.All || s.Whole[id] || s.ByName[id.Name] }

// AddSteps adds the models of the steps of ensembles among those that were read to those of
// which all is read, and reports whether there are more: then the scan is repeated.
func (s *Scan) AddSteps(models []catalog.Model) (more bool) {
	for i := range models {
		for _, id := range catalog.Steps(models[i].ID(), models[i].Config) {
			if !s.Reads(id) {
				s.Whole[id], more = true, true
			}
		}
	}
	return more
}

// Read has a model be read for an operation; a [WasRead] follows.
type Read struct {
	Operation uint64
	// Caller is who gave the configuration or the files; 0 for a step of an ensemble.
	Caller uint64
	Model  infer.ModelID
	// Retained is the value whose configuration is retained, if the model's files are as they
	// were; nil is none.
	Retained *nereidv1.ModelValue
}

// Answer ends a request. Err is nil for a success.
type Answer struct {
	Caller uint64
	Err    error
}

// Level is a note's.
type Level uint8

// The levels of notes.
const (
	Info Level = iota
	Warn
	Error
)

// Note is what the log says.
type Note struct {
	Level  Level
	Text   string
	Fields []Field
}

// Field is a part of a note.
type Field struct {
	Name  string
	Value any
}

// Report is what others may see of a leadership. It is never changed.
type Report struct {
	// UnderReplicated is why loaded versions are on fewer workers than they should be.
	UnderReplicated map[infer.ModelRef]string
	// Lagging are the revisions of the bucket models that gateways and schedulers which are
	// alive have not applied within [Config.LagTimeout], by their ids.
	Lagging map[string]uint64
}
