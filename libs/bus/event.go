package bus

// EventKind says what an [Event] reports.
type EventKind uint8

const (
	// EventPut says that a key has a value: at the start of a watch, or a new one.
	EventPut EventKind = iota + 1
	// EventDelete says that a key has no value any more.
	EventDelete
	// EventCaughtUp says that everything up to Revision has been sent. It comes
	// once after the present values, and again after each reconnect.
	EventCaughtUp
	// EventLost says that the bucket has lost what it held and was made again.
	// Writers write their values again, which are sent as new ones. The ends of
	// the others come later: after [LossGrace], or in a bucket that one writer
	// restores, when it has marked the bucket as synced.
	EventLost
)

// Event is one change in a bucket. Events of one key come in order of their
// revision; a value that was replaced at once may be skipped.
type Event[T any] struct {
	Kind EventKind
	// Key is empty in EventCaughtUp and EventLost.
	Key string
	// Value is set in an EventPut without Err.
	Value T
	// Revision is that of the value or of its end, and in EventCaughtUp that
	// of the whole bucket. A key that vanished while the server was away gets
	// the bucket's.
	Revision uint64
	// Expired says, in EventDelete, that no known writer has deleted the key:
	// its lease ended, or it vanished while the server was away.
	Expired bool
	// Err says why the value of an EventPut cannot be read. The key exists,
	// and the watch goes on.
	Err error
}
