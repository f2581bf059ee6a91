package backend

// Condition is how an instance is, in which it may change.
type Condition struct {
	// Away is why the instance is not there for a while, such as one whose process has
	// ended and is started again: what it is given fails. Nil if it is there.
	Away error
	// Unready is why the model says of an instance that is there that it is not ready.
	// It takes batches all the same.
	Unready error
}

// Cause is why the instance is not ready; nil if it is.
func (c Condition) Cause() error {
	if c.Away != nil {
		return c.Away
	}
	return c.Unready
}

// Changing is an instance that is not always there, or ready.
type Changing interface {
	// Watch sets what is told how the instance is: of each change, and at once if it is
	// away or not ready. One call follows the other, and none of what was set before is
	// under way when Watch returns. A tell of nil is told nothing.
	Watch(tell func(Condition))
}
