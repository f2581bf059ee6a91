// Package dispatcher brings a gateway's requests to the scheduler that holds
// their pool, whoever that is.
//
// It keeps every request until its final answer, since a scheduler may die with
// it: then the request is submitted again, with the next attempt, to the next
// scheduler, which knows from the workers what ran and what did not. While
// there is none, requests wait, within bounds in number, bytes and time.
//
// # Which answers count
//
// A result counts whatever the attempt: the request has run. A refusal or
// failure counts if it is that of the present attempt; one of an earlier attempt
// is kept for the case that the scheduler says that this attempt is the one that
// runs. From then on every answer counts.
//
// # Locks
//
// The dispatcher's lock is not held while a session, the gateway or a hook is
// called.
package dispatcher
