// Package infer holds the types that Nereid's services share: requests and
// responses, the identity of work, batches for instances and their
// completions.
//
// # Ownership
//
// A [Request] belongs to one component at a time. A successful submit transfers
// it, and the new owner finishes it exactly once; on an error the caller still
// owns it. To finish a request is to release its inputs ([Request.Release]) and
// to give a final [Response] with its identity to the gateway that created it.
// The gateway's table of requests turns that into the client's one response.
//
// Times are [mono.Time] of the process that holds the value.
package infer
