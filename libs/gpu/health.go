package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	// faultHolds is for how long a GPU counts as sick after an error that it recovers from by
	// itself, if at all: then models come back, and leave at the next.
	faultHolds = 10 * time.Minute
	// stateHolds is for how long it does after it has last said that it is.
	stateHolds = time.Minute
	// throttledAfter is how long a GPU has to run slower than it could, for heat or power.
	throttledAfter = 10 * time.Second
)

// sickening are the errors of the driver, by NVIDIA's catalog of Xids, after which the device is
// to be reset. All others are those of programs, or are told for information.
func sickening(xid uint64) (what string, sick bool) {
	what, sick = map[uint64]string{
		46: "it stopped working", 48: "an uncorrectable memory error", 62: "its controller halted", 64: "memory could not be retired", 74: "an error of NVLink",
		79: "it has fallen off the bus", 94: "a contained memory error", 95: "an uncontained memory error", 110: "an error of its security processor",
		119: "its system processor does not answer", 120: "an error of its system processor", 136: "a broken link", 140: "an unrecovered memory error",
		143: "it could not be initialized", 156: "a failed repair", 158: "a fatal timeout",
	}[xid]
	return what, sick
}

// Sample is the state that a GPU reports.
type Sample struct {
	// Lost reports whether the GPU no longer responds.
	Lost bool
	// Uncorrected counts memory errors since the driver started; -1 if not reported.
	Uncorrected int64
	// RepairFailed reports whether there was no spare memory for a broken row, RepairPending
	// whether broken pages are in use until a reset.
	RepairFailed, RepairPending bool
	// Throttled are the reasons for reduced clocks: see [ThrottleReasons].
	Throttled []string
}

// ThrottleReasons are the reasons for which GPUs reduce their clocks.
func ThrottleReasons() []string {
	return []string{"sw_thermal", "hw_slowdown", "hw_thermal", "hw_power"}
}

// Health judges a GPU by its samples and errors. It is not safe for concurrent use.
type Health struct {
	until       map[string]time.Time // how long each problem holds
	uncorrected int64
	sampled     bool
	since       map[string]time.Time // since when it is throttled, by reason
}

// NewHealth returns the health of a GPU without samples or errors.
func NewHealth() *Health {
	return &Health{until: make(map[string]time.Time), since: make(map[string]time.Time)}
}

// Error records an error of the driver.
func (h *Health) Error(now time.Time, xid uint64) {
	if what, sick := sickening(xid); sick {
		h.until[fmt.Sprintf("Xid %d: %s", xid, what)] = now.Add(faultHolds)
	}
}

// Sample records a sample.
func (h *Health) Sample(now time.Time, s Sample) {
	hold := func(on bool, problem string, by time.Duration) {
		if on {
			h.until[problem] = now.Add(by)
		}
	}
	hold(s.Lost, "it does not answer: reset it, or restart the machine", stateHolds)
	hold(s.RepairFailed, "its memory cannot be repaired: replace it", stateHolds)
	hold(s.RepairPending, "its memory waits for a repair: reset it", stateHolds)
	hold(h.sampled && s.Uncorrected > h.uncorrected, "memory errors that could not be corrected", faultHolds)
	if s.Uncorrected >= 0 {
		h.uncorrected, h.sampled = s.Uncorrected, true
	}
	for _, reason := range ThrottleReasons() {
		if !slices.Contains(s.Throttled, reason) {
			delete(h.since, reason)
		} else if _, ok := h.since[reason]; !ok {
			h.since[reason] = now
		}
	}
}

// Problem returns why the GPU is sick; empty if it is healthy.
func (h *Health) Problem(now time.Time) string {
	var list []string
	for problem, until := range h.until {
		if now.Before(until) {
			list = append(list, problem)
		} else {
			delete(h.until, problem)
		}
	}
	slices.Sort(list)
	return strings.Join(list, "; ")
}

// Throttled returns the reasons for which the GPU has been slower for a while.
func (h *Health) Throttled(now time.Time) (reasons []string) {
	for _, reason := range ThrottleReasons() {
		if since, ok := h.since[reason]; ok && now.Sub(since) >= throttledAfter {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

// Probe queries the state of one GPU.
type Probe struct {
	handle nvml.Device
	events nvml.EventSet // nil where it reports none
	// UUID is the UUID of the GPU.
	UUID string
}

// Probe opens a probe of the GPU with a UUID, or with a number if that is empty. Errors have
// the reason config_invalid.
func (m *Machine) Probe(number int, uuid string) (*Probe, error) {
	handle, err := m.handle(number, uuid)
	if err != nil {
		return nil, err
	}
	p := &Probe{handle: handle, UUID: uuid}
	if known, ret := handle.GetUUID(); ret == nvml.SUCCESS {
		p.UUID = cmp.Or(uuid, known)
	}
	p.register(m.library)
	return p, nil
}

// register asks for the errors of the driver, where the GPU reports them.
func (p *Probe) register(library nvml.Interface) {
	events, ret := library.EventSetCreate()
	switch {
	case ret != nvml.SUCCESS:
	case p.handle.RegisterEvents(nvml.EventTypeXidCriticalError, events) == nvml.SUCCESS:
		p.events = events
	default:
		_ = events.Free()
	}
}

// Close closes the probe.
func (p *Probe) Close() {
	if p.events != nil {
		_ = p.events.Free()
	}
}

// Errors waits up to the given time for an error of the driver and returns it; 0 is none.
func (p *Probe) Errors(patience time.Duration) (xid uint64) {
	if p.events == nil {
		return 0
	}
	event, ret := p.events.Wait(uint32(patience / time.Millisecond))
	if ret != nvml.SUCCESS || event.EventType != nvml.EventTypeXidCriticalError {
		return 0
	}
	return event.EventData
}

// Reports says whether the GPU reports errors of the driver: otherwise [Probe.Errors] does not
// wait.
func (p *Probe) Reports() bool { return p.events != nil }

// Product is the name of the GPU's make.
func (p *Probe) Product() string {
	name, _ := p.handle.GetName() // or it says none
	return name
}

// Memory returns the used and total memory of the GPU in bytes; 0 if not reported.
func (p *Probe) Memory() (used, total uint64) {
	m, ret := p.handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return 0, 0
	}
	return m.Used, m.Total
}

// Sample queries the GPU. Conditions that it does not report count as healthy.
func (p *Probe) Sample() Sample {
	s := Sample{Uncorrected: -1}
	_, ret := p.handle.GetMemoryInfo()
	s.Lost = ret == nvml.ERROR_GPU_IS_LOST
	if count, ret := p.handle.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		s.Uncorrected = int64(count)
	}
	if _, _, _, broken, ret := p.handle.GetRemappedRows(); ret == nvml.SUCCESS {
		s.RepairFailed = broken
	}
	if pending, ret := p.handle.GetRetiredPagesPendingStatus(); ret == nvml.SUCCESS {
		s.RepairPending = pending == nvml.FEATURE_ENABLED
	}
	reasons, ret := p.handle.GetCurrentClocksEventReasons()
	if ret != nvml.SUCCESS {
		return s
	}
	bits := []uint64{nvml.ClocksEventReasonSwThermalSlowdown, nvml.ClocksThrottleReasonHwSlowdown, nvml.ClocksThrottleReasonHwThermalSlowdown, nvml.ClocksThrottleReasonHwPowerBrakeSlowdown}
	for i, reason := range ThrottleReasons() {
		if reasons&bits[i] != 0 {
			s.Throttled = append(s.Throttled, reason)
		}
	}
	return s
}
