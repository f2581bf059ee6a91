package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// EventKind tells events apart.
type EventKind uint8

// The events, and the fields of [Event] that each uses.
const (
	// Submit brings a new Item.
	Submit EventKind = iota + 1
	// Cancel says that nobody waits for Unit any more; its attempt and iteration do
	// not matter.
	Cancel
	// Configure makes a model known, or gives an early one its configuration.
	Configure
	// Remove says that the model leaves the repository. It is forgotten when
	// its last instance has retired.
	Remove
	// Learned brings what executions of Model on some kinds of devices took before, in
	// Costs. What is known better already stays.
	Learned
	// Granted offers credits of an instance; the first introduces it.
	Granted
	// Retire asks that Instance be drained.
	Retire
	// InstanceFree says that an instance can take its next batch after that of
	// Ended, and of each unit whether it is done.
	InstanceFree
	// UnitDone says that the unit of Done, of which InstanceFree said that more was
	// to come, has given its last response.
	UnitDone
	// MemoryReported says that the batches of the worker Instance.Worker may have
	// Memory bytes together.
	MemoryReported
	// BatchReturned gives back the one of Batches, with the requests that it
	// names, which its worker has not started. Reason says why: no_worker is that
	// there is no such instance any more, peer_unreachable that the worker will
	// connect anew.
	BatchReturned
	// BecomeLeader says that the pool is the scheduler's under Epoch from now
	// on, and that the store holds History under that epoch: see [Inherit]. By
	// Until at the latest every worker must have reported that may have started
	// requests of earlier schedulers. A model without an instance is waited for as long when it is
	// first asked for.
	BecomeLeader
	// StepDown says that the pool is another's: everything is handed off, and
	// the models and leases alone are kept. The core must be settled before it
	// leads again.
	StepDown
	// LeaseHeld says that the incarnation Instance.Worker holds the lease of Key
	// since Revision.
	LeaseHeld
	// LeaseEnded says that nobody holds the lease of Key since Revision. Released
	// says that its holder gave it up.
	LeaseEnded
	// WorkerConnected brings what the worker Instance.Worker has started, and says
	// that its instances will be granted.
	WorkerConnected
	// WorkerDisconnected says that the stream of the worker Instance.Worker has
	// ended, which says nothing about what it runs. Its instances are forgotten.
	// The requests of the Batches under way there are the core's again, beside
	// the worker's. Models without an instance are waited for until Until.
	WorkerDisconnected
	// WorkerLost says that the worker Instance.Worker is dead. Released says that
	// it has left: it runs nothing, and its gateways have acknowledged all answers.
	WorkerLost
	// GatewayDisconnected says that the gateway Origin cannot be reached: what it
	// waits for is handed off for peer_unreachable, unless it runs.
	GatewayDisconnected
	// Recorded says that the store holds what the decision Record of Version
	// asked it to.
	Recorded
	// Tick says that the time has come which [Core.NextWake] asked for.
	Tick
)

// Event is one thing that happened.
type Event struct {
	Kind     EventKind
	Item     *Item
	Unit     infer.Unit
	Model    *Model
	Grant    *infer.Grant
	Instance infer.InstanceID
	Ended    *infer.InstanceFree
	Done     *infer.UnitDone
	Memory   int64 // 0 is no bound
	Costs    []infer.Cost

	Batches []*infer.Batch
	Reason  errs.Reason
	Origin  uint64

	Epoch    uint64
	History  History
	Until    mono.Time
	Held     *infer.Held
	Key      string
	Revision uint64
	Released bool
	Version  uint64
}

// History is what the store holds of a pool's schedulers, so that the next one
// knows which workers may have started what it is asked to run.
type History struct {
	// Workers are the incarnations that may have got batches.
	Workers []uint64
	// IncompleteBefore is an epoch: of what earlier schedulers got, nobody knows
	// all that was started.
	IncompleteBefore uint64
}

// Inherit is the history that a scheduler writes under its own epoch before it
// becomes the leader, given what the store holds. Where it holds nothing, what
// earlier schedulers got is unknown.
func Inherit(stored *History, epoch uint64) History {
	if stored == nil {
		return History{IncompleteBefore: epoch}
	}
	return *stored
}

// Model is a loaded generation of a model version and how it is served.
type Model struct {
	Ref infer.ModelRef
	// Config may be nil in a Remove.
	Config *modelconfig.Config
}

// keyOf is the unit whatever the attempt and the iteration, of which there is one
// at a time.
func keyOf(u infer.Unit) infer.Unit {
	u.Attempt, u.Iteration = 0, 0
	return u
}
