// Package perf measures servers that speak the inference protocol: Nereid,
// Triton and others.
//
// A [Bench] sends requests under a [Load], which is a closed loop of clients or
// an open loop of arrivals. Latency counts from the time at which a request was
// due, so a server that stalls cannot hide the requests that waited for it. The
// time by which the generator itself sent a request too late is its own lag and
// is reported apart.
//
// Every figure carries a 95 % confidence interval. Successive requests share a
// queue and are not independent, so intervals come from batches: windows of time
// that are long beside that dependence.
package perf
