package gateway

import (
	"fmt"

	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// Announce logs the addresses on which the gateway serves, in Triton's wording, for which scripts wait. Call it
// once the start is over.
func (g *Gateway) Announce() {
	http, grpc := g.Addresses()
	if grpc != "" {
		g.deps.Log.Info("Started GRPCInferenceService at " + grpc)
	}
	if http != "" {
		g.deps.Log.Info("Started HTTPService at " + http)
	}
}

// announceModels logs the models that are new in a snapshot and those that were unloaded since the previous
// one, as Triton does.
func (g *Gateway) announceModels(before, after *core.Snapshot) {
	loaded, unloaded := after.Changes(before)
	for _, ref := range loaded {
		g.deps.Log.Info(fmt.Sprintf("successfully loaded '%s'", ref.Name), obs.Model(ref)...)
	}
	for _, ref := range unloaded {
		g.deps.Log.Info(fmt.Sprintf("successfully unloaded '%s' version %d", ref.Name, ref.Version), obs.Model(ref)...)
	}
}
