// Package nereidv1 are the contracts between Nereid's services: the identity
// of work, descriptors and batches, tensors between processes, and the values
// of the state buckets with their codec.
//
// All but the codec is generated. libs/infer holds the same nouns as services
// use them inside one process; times there are a process's own monotonic
// clock, here they are durations, since processes share no clock.
//
// Services of release N and N−1 work together. A stream begins with a hello
// from each side that states the highest protocol it speaks, and both keep to
// the lower of the two; fields are added and never change their meaning.
package nereidv1
