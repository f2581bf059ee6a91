package accumulator

// Sums is how many sums the instance keeps.
func (in *instance) Sums() int { return len(in.sums) }
