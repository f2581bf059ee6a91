// Package sequence stands between the instance queue and the backend of a model
// that batches sequences. It adds to each request the inputs that describe its
// place in the sequence and that no client sends: the controls START, END, READY and
// correlation ID, and the states from the previous request. So a backend knows
// nothing of sequences.
//
// # Rows
//
// With the strategy direct, each slot has its row in every execution. A slot below
// the highest one in use that has no request gets an empty row: not ready, with
// correlation ID 0, and with zeros in the shapes of the batch's first request. The
// model's outputs for it are dropped and not counted.
//
// # States
//
// A START sets the states to their initial values. A successful execution replaces
// them with its state outputs; a failed or canceled one leaves them unchanged. They
// are released with END, the next START in the slot, and the instance.
//
// A request whose slot does not hold its sequence, because earlier requests did not
// run here, is refused: it would run on another state.
package sequence
