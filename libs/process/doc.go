// Package process is what all service programs share: the command line with its
// exit statuses and signals, the log, the connection to NATS, the listeners for
// other services, the operators' endpoint, and the settings for all of that. It
// decides nothing about a service.
package process
