package rest

import (
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// sharedMemoryRoutes answer as a Triton does whose clients may not share
// memory, which is how Triton starts: there are no regions and none can be
// registered.
func sharedMemoryRoutes() []route {
	var routes []route
	for _, kind := range []core.MemoryKind{core.SystemMemory, core.CUDAMemory} {
		prefix := "/v2/" + string(kind) + "sharedmemory"
		routes = append(routes,
			route{http.MethodGet, prefix + "/status", core.SharedMemoryAPI, noRegions},
			route{http.MethodGet, prefix + "/region/{region}/status", core.SharedMemoryAPI, noRegion(kind)},
			route{http.MethodPost, prefix + "/region/{region}/register", core.SharedMemoryAPI, regionsDisabled},
			route{http.MethodPost, prefix + "/unregister", core.SharedMemoryAPI, regionsDisabled},
			route{http.MethodPost, prefix + "/region/{region}/unregister", core.SharedMemoryAPI, regionsDisabled})
	}
	return routes
}

func noRegions(w http.ResponseWriter, _ *http.Request) error { return reply(w, []struct{}{}) }

func noRegion(kind core.MemoryKind) func(http.ResponseWriter, *http.Request) error {
	return func(_ http.ResponseWriter, r *http.Request) error {
		name, err := url.PathUnescape(chi.URLParam(r, "region"))
		if err != nil {
			return notFound()
		}
		return core.RegionNotFound(kind, name)
	}
}

func regionsDisabled(http.ResponseWriter, *http.Request) error { return core.SharedMemoryDisabled() }
