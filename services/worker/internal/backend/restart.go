package backend

// Restarter is an instance that may be away for a while, such as one whose process
// has ended and is started again. What it is given meanwhile fails.
type Restarter interface {
	// Watch sets what is told that the instance is away, with the cause, and that it is
	// back, with nil; at once if it is away now, and again when the cause changes. One
	// call follows the other, and none of what was set before is under way when Watch
	// returns. A tell of nil is told nothing.
	Watch(tell func(cause error))
}
