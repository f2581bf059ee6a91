// Package infer holds the nouns that Nereid's services share: requests and
// responses, the identity of work, batches for instances and their
// completions.
//
// # Ownership
//
// A [Request] belongs to one component at a time. A submit that returns nil
// passes it on, and the new owner finishes it exactly once; on an error the
// caller still owns it. "Finish" means: its inputs are released
// ([Request.Release]) and a final [Response] with its identity is given to
// the gateway that made it. The gateway's pending table is what turns that
// into the client's one response.
//
// Times are [mono.Time] of the process that holds the value.
package infer
