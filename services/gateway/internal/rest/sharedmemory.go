package rest

import (
	"net/http"
	"net/url"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// sharedMemoryRoutes respond as Triton with client shared memory disabled, its
// default: there are no regions and none can be registered.
func sharedMemoryRoutes() []route {
	var routes []route
	for _, kind := range []core.MemoryKind{core.SystemMemory, core.CUDAMemory} {
		prefix := "/v2/" + string(kind) + "sharedmemory"
		routes = append(routes,
			route{method: http.MethodGet, pattern: prefix + "/status", api: core.SharedMemoryAPI, serve: noRegions},
			route{method: http.MethodGet, pattern: prefix + "/region/{region}/status", api: core.SharedMemoryAPI, serve: noRegion(kind)},
			route{method: http.MethodPost, pattern: prefix + "/region/{region}/register", api: core.SharedMemoryAPI, serve: regionsDisabled},
			route{method: http.MethodPost, pattern: prefix + "/unregister", api: core.SharedMemoryAPI, serve: regionsDisabled},
			route{method: http.MethodPost, pattern: prefix + "/region/{region}/unregister", api: core.SharedMemoryAPI, serve: regionsDisabled})
	}
	return routes
}

func noRegions(w http.ResponseWriter, _ *http.Request) error { return reply(w, []struct{}{}) }

func noRegion(kind core.MemoryKind) func(http.ResponseWriter, *http.Request) error {
	return func(_ http.ResponseWriter, r *http.Request) error {
		name, err := url.PathUnescape(r.PathValue("region"))
		if err != nil {
			return notFound()
		}
		return core.RegionNotFound(kind, name)
	}
}

func regionsDisabled(http.ResponseWriter, *http.Request) error { return core.SharedMemoryDisabled() }
