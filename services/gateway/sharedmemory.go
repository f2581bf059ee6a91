package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// SharedMemory configures the memory regions that clients share with a gateway.
type SharedMemory struct {
	Allow      config.Switch `name:"allow-client-shm" default:"false" group:"Shared memory" help:"Let clients of this host register regions of files in /dev/shm and of memory of GPUs, and send and receive tensors in them."`
	MaxRegions int64         `name:"client-shm-max-regions" default:"1024" group:"Shared memory" help:"Most regions that are registered at a time, each of which takes a file descriptor or, on a GPU, a connection to its worker; under a policy a tenant has at most three quarters of them. 0 is no bound."`
	MaxBytes   int64         `name:"client-shm-max-bytes" default:"68719476736" group:"Shared memory" help:"Most bytes of all registered regions together; under a policy a tenant has at most three quarters of them. 0 is no bound."`
}

func defaultSharedMemory() SharedMemory { return SharedMemory{MaxRegions: 1024, MaxBytes: 64 << 30} }

func (c *SharedMemory) validate() error {
	switch {
	case c.MaxRegions < 0:
		return errs.New(errs.ConfigInvalid, "--client-shm-max-regions is %d: want 0 (no bound) or more", c.MaxRegions)
	case c.MaxBytes < 0:
		return errs.New(errs.ConfigInvalid, "--client-shm-max-bytes is %d: want 0 (no bound) or more", c.MaxBytes)
	}
	return nil
}

// GPUs are the GPUs whose memory clients may share: see [regions.GPUs].
type GPUs = regions.GPUs

// open returns the gateway's regions, or nil if clients may not share memory. gpus may be nil.
func (c *SharedMemory) open(gpus GPUs, metrics prometheus.Registerer) *regions.Regions {
	var r *regions.Regions
	if c.Allow.On {
		r = regions.New(regions.Options{MaxRegions: c.MaxRegions, MaxBytes: c.MaxBytes, GPUs: gpus})
	}
	metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_shared_memory_regions", Help: "Regions of clients' shared memory that are registered.",
	}, func() float64 { n, _ := r.Registered(); return float64(n) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "nereid_gateway_shared_memory_bytes", Help: "Bytes of the regions of clients' shared memory that are registered.",
	}, func() float64 { _, n := r.Registered(); return float64(n) }))
	return r
}
