// Package view turns what the state buckets say into the gateway's snapshots:
// the models that should be served (bucket models), what the workers run
// (buckets workers and instances), and whether the registry has published its whole scan
// (bucket leaders). The gateway acts on nothing else.
package view
