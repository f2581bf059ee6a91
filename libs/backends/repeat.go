package backends

// Repeat is the name of the backend whose decoupled models give a response for each
// element of an input.
const Repeat = "repeat"

func repeat() Descriptor {
	return Descriptor{Name: Repeat, BuiltIn: true, CPU: true}
}
