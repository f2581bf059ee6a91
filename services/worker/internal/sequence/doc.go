// Package sequence stands between the instance queue and the backend of a model
// that batches sequences. It gives each request what the model wants to know of
// its place, as inputs that no client sends: the controls START, END, READY and
// correlation ID, and the states that the request before has left. So a backend
// knows nothing of sequences.
//
// # Rows
//
// Where the strategy is direct each slot has its row in every execution. A slot
// below the highest one in use that has no request gets an empty one: not ready,
// of correlation ID 0, and with zeros in the shapes of the batch's first request.
// What the model makes of it is dropped, and counted for nobody.
//
// # States
//
// A START sets the states to their initial values. An execution that succeeds
// replaces them by its state outputs; one that fails or is canceled leaves them as
// they were. They are released with the END, the next START in the slot, and the
// instance.
//
// A request whose slot does not hold its sequence, since what came before did not
// run here, is refused: it would run on another state.
package sequence
