package infer

// Slot is the place of a request of a sequence in its instance, and what the
// model's control inputs say of the request.
type Slot struct {
	// Index is the slot that the sequence has of the instance, from 0.
	Index uint32
	// Sequence has the correlation ID, which is the server's where the client gave
	// none, and whether the request starts or ends the sequence.
	Sequence Sequence
}
