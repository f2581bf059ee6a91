package modelconfig

import (
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// ShareInFlightKey is the parameter by which equal requests in flight share one
// execution: true or false, which is the default.
const ShareInFlightKey = "requests.share_in_flight"

// Reuses reports whether a response may answer more requests than one.
func (c *Config) Reuses() bool { return c.Cached || c.Shared }

// validateSharing refuses sharing for models whose responses depend on more than the
// request, or on the order of requests.
func (r *report) validateSharing(c *inference.ModelConfig) {
	parameter, given := c.GetParameters()[ShareInFlightKey]
	switch value := parameter.GetStringValue(); {
	case !given || value == "false":
		return
	case value != "true":
		r.invalid(entry("parameters", ShareInFlightKey), "use true or false", "parameter %s is '%s'", ShareInFlightKey, value)
		return
	}
	for _, cause := range []struct {
		holds bool
		what  string
	}{
		{c.GetModelTransactionPolicy().GetDecoupled(), "a decoupled transaction policy"},
		{c.GetSequenceBatching() != nil, "sequence batching"},
		{c.GetDynamicBatching().GetPreserveOrdering(), "preserve_ordering"},
		{c.GetEnsembleScheduling() != nil, "ensemble scheduling"},
	} {
		if cause.holds {
			r.wrong(entry("parameters", ShareInFlightKey), "remove the parameter", "requests of model %s cannot share executions: it has %s", r.model, cause.what)
		}
	}
}
