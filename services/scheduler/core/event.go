package core

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
)

// EventKind distinguishes the kinds of events.
type EventKind uint8

// The events, and the fields of [Event] that each uses.
const (
	// Submit submits Item.
	Submit EventKind = iota + 1
	// Cancel says that nobody waits for Unit any more. The unit's attempt and iteration are ignored.
	Cancel
	// Configure introduces a model, or supplies the configuration of one that is already in use without it.
	Configure
	// Remove says that the model leaves the repository. The core forgets it once its last instance has retired.
	Remove
	// Learned brings Costs: how long earlier executions of Model took, by kind of device. Costs that the core knows
	// better are not replaced.
	Learned
	// Granted grants credits of an instance. The first grant introduces the instance.
	Granted
	// Retire asks that Instance be drained.
	Retire
	// InstanceFree says that an instance has finished the batch of Ended and can accept the next one. Ended also says
	// for each unit whether it is done.
	InstanceFree
	// UnitDone says that the unit of Done has sent its last response, after InstanceFree had announced more responses
	// for it.
	UnitDone
	// MemoryReported says that the batches of the worker Instance.Worker may use Memory bytes in total.
	MemoryReported
	// BatchReturned returns the one batch in Batches, whose named requests its worker has not started. Reason is
	// no_worker if the instance no longer exists, peer_unreachable if the worker will reconnect.
	BatchReturned
	// BecomeLeader makes this scheduler the leader of the pool under Epoch. The store holds History under that epoch:
	// see [Inherit]. Workers that may have started requests of earlier schedulers have until Until to report. The
	// first request for a model without an instance waits for one just as long.
	BecomeLeader
	// StepDown says that another scheduler leads the pool: the core hands everything off and retains only the models
	// and leases. The core must be settled before it leads again.
	StepDown
	// LeaseHeld says that the incarnation Instance.Worker has held the lease of Key since Revision.
	LeaseHeld
	// LeaseEnded says that nobody has held the lease of Key since Revision. Released says that its holder gave it up.
	LeaseEnded
	// WorkerConnected reports in Held what the worker Instance.Worker has started. Grants of its instances follow.
	WorkerConnected
	// WorkerDisconnected says that the stream of the worker Instance.Worker has ended, which says nothing about what
	// it runs. The core forgets its instances. The core owns the requests of the in-flight Batches again, alongside
	// the worker. Models without an instance are waited for until Until.
	WorkerDisconnected
	// WorkerLost says that the worker Instance.Worker is dead. Released says that it left in an orderly way: it runs
	// nothing, and its gateways have acknowledged all answers.
	WorkerLost
	// GatewayDisconnected says that the gateway Origin cannot be reached: the core hands off its requests for
	// peer_unreachable, except those that run.
	GatewayDisconnected
	// Recorded says that the store holds what the Record decision with version Version asked for.
	Recorded
	// Tick says that the time that [Core.NextWake] asked for has come.
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

// History is what the store holds about a pool's schedulers. From it the next scheduler knows which workers may
// already have started the requests that it receives.
type History struct {
	// Workers are the incarnations that may have received batches.
	Workers []uint64
	// IncompleteBefore is an epoch. It is unknown which requests of schedulers before that epoch were started.
	IncompleteBefore uint64
}

// Inherit returns the history that a scheduler writes under its own epoch before it becomes the leader, given what
// the store holds. If the store holds nothing, it is unknown what earlier schedulers started.
func Inherit(stored *History, epoch uint64) History {
	if stored == nil {
		return History{IncompleteBefore: epoch}
	}
	return *stored
}

// Model is a loaded generation of a model version, with the configuration that it is served under.
type Model struct {
	Ref infer.ModelRef
	// Config may be nil in a Remove.
	Config *modelconfig.Config
}

// keyOf returns the unit without its attempt and iteration: only one attempt and iteration of a unit exists at a
// time.
func keyOf(u infer.Unit) infer.Unit {
	u.Attempt, u.Iteration = 0, 0
	return u
}
