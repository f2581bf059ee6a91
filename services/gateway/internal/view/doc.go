// Package view builds the gateway's snapshots from the state buckets: the models to serve (bucket models), the
// instances on the workers (buckets workers and instances), and whether the registry's first scan is complete
// (bucket leaders). The gateway relies on nothing else.
package view
