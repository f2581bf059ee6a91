// Package process is what the programs of the services have in common: the
// command line with its exit statuses and signals, the log, the connection to
// NATS, the listeners for the other services, the endpoint for operators, and
// how settings say all that. It decides nothing about a service.
package process
