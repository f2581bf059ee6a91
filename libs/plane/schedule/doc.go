// Package schedule implements both ends of the streams of a pool's scheduler: the stream of a gateway, which submits
// requests, and that of a worker, which runs batches. A session lasts as long as one stream. The caller handles what
// outlives it: finding the current scheduler, reconnecting, resubmitting.
package schedule

import (
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// helloTimeout limits the time from dialing to the end of the hellos.
const helloTimeout = 10 * time.Second

// Why streams end.
var (
	errNoMessage  = errs.New(errs.PeerMalformed, "the peer sent a message of no known kind")
	errForeign    = errs.New(errs.PeerMalformed, "the peer spoke for another")
	errCredit     = errs.New(errs.PeerMalformed, "the gateway sent a request twice or without credit")
	errUnasked    = errs.New(errs.PeerMalformed, "the worker spoke of a batch that it does not have")
	errReplaced   = errs.New(errs.PeerUnreachable, "the peer has opened another stream")
	errEnded      = errs.New(errs.SchedulerDeposed, "the scheduler does not hold its pool's lease any more")
	errNotServing = errs.New(errs.PeerUnreachable, "the scheduler does not hold its pool's lease")
	errGone       = errs.New(errs.PeerUnreachable, "the worker's stream has ended")
)
