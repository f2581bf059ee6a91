// Package perf measures servers that speak the inference protocol: Nereid,
// Triton and others.
//
// A [Bench] sends requests under a [Load], which is a closed loop of clients or
// an open loop of arrivals. Latency starts when a request was due, so a server
// that stalls cannot hide the requests that waited for it. The generator's own
// delay in sending a request is reported separately.
//
// Every figure carries a 95 % confidence interval. Successive requests share a
// queue and are not independent, so intervals come from windows of time that are
// long compared with that dependence.
package perf
