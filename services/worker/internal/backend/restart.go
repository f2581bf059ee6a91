package backend

// Condition is the condition of an instance, which may change.
type Condition struct {
	// Away is why the instance is temporarily unavailable, for example because its process has ended and is being
	// restarted: batches that it receives fail. Nil if it is available.
	Away error
	// Unready is why the model says that an available instance is not ready. The instance accepts batches all the
	// same.
	Unready error
}

// Cause returns why the instance is not ready; nil if it is.
func (c Condition) Cause() error {
	if c.Away != nil {
		return c.Away
	}
	return c.Unready
}

// Changing is an instance that is not always available, or ready.
type Changing interface {
	// Watch sets a function to be notified of each change of the instance's condition, and immediately if the
	// instance is away or not ready. Calls do not overlap, and no call of a previously set function is running when
	// Watch returns. A nil tell is not called.
	Watch(tell func(Condition))
}
