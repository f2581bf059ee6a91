package backends

// The backends that run no engine and need no files. All but echo are Triton's own
// test backends.
const (
	// Echo is the name of the backend whose models return their inputs.
	Echo = "echo"
	// Identity is the name of the backend whose models return INPUT<index> as OUTPUT<index>.
	Identity = "identity"
	// Repeat is the name of the backend whose decoupled models give a response for
	// each element of an input.
	Repeat = "repeat"
	// Square is the name of the backend whose decoupled models give n responses to n.
	Square = "square"
	// Sequence is the name of the backend whose models sum up the inputs of a
	// sequence, by slot.
	Sequence = "sequence"
	// DynaSequence is the name of the one that does by correlation ID.
	DynaSequence = "dyna_sequence"
)

func withoutEngine() []Descriptor {
	return []Descriptor{
		{Name: Echo, BuiltIn: true, CPU: true, GPU: true},
		{Name: Identity, BuiltIn: true, CPU: true, GPU: true},
		{Name: Repeat, BuiltIn: true, CPU: true},
		{Name: Square, BuiltIn: true, CPU: true},
		{Name: Sequence, BuiltIn: true, CPU: true},
		{Name: DynaSequence, BuiltIn: true, CPU: true},
	}
}
