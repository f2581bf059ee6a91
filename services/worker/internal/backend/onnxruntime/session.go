//go:build cgo

package onnxruntime

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
	"github.com/nereid-serving/nereid/services/worker/internal/device"
)

// session is a loaded ONNX model. The Go binding makes and destroys it, so
// that its option handling and execution providers stay in use; its runs go
// through the shim, over the same native session.
type session struct {
	bound  *ort.DynamicAdvancedSession
	native unsafe.Pointer
	// around calls what begins or ends the session, or is its first run, and undoes what
	// the execution provider has done to the process by that.
	around func(func())
}

// newSession loads the version's file for runs on its device, or on the cores, and gives up
// when ctx ends. Input and output names are not given to the binding, which needs them only
// for runs of its own.
func (b *Backend) newSession(ctx context.Context, file string, v backend.Version, pinned cores.Set) (*session, error) {
	settings, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	defer settings.Destroy() //nolint:errcheck // releases memory, cannot fail
	if err := configure(settings, v.Config, b.options, pinned); err != nil {
		return nil, err
	}
	s := &session{}
	if s.around, err = b.accelerate(settings, file, v, pinned); err != nil {
		return nil, err
	}
	if b.options.shared(v.Config, pinned) {
		if err := b.engine.usePools(settings); err != nil {
			return nil, err
		}
	}
	release, err := b.engine.until(ctx, settings)
	if err != nil {
		return nil, err
	}
	defer release()
	s.around(func() { s.bound, err = ort.NewDynamicAdvancedSession(file, nil, nil, settings) })
	if err != nil {
		return nil, err
	}
	if s.native, err = nativeSession(s.bound); err != nil {
		_ = s.close()
		return nil, err
	}
	return s, nil
}

// accelerate has sessions use the execution providers for the version's device.
func (b *Backend) accelerate(settings *ort.SessionOptions, file string, v backend.Version, pinned cores.Set) (around func(func()), err error) {
	if g := b.deviceOf(v); g != nil {
		if err := g.cuda.open(g.ordinal); err != nil {
			return nil, err
		}
		if err := g.fits(bytesIn(v.Dir)); err != nil {
			return nil, err
		}
		return g.cuda.around, g.use(settings, v.Config, b.engineCache(file))
	}
	around = func(f func()) { f() }
	for _, a := range v.Config.CPUAccelerators { // the registry knows no other than OpenVINO
		if err := b.openvino.use(settings, v.Config, a, b.options.threads(pinned)); err != nil {
			return nil, err
		}
		around = onSignalStack
	}
	return around, nil
}

func (s *session) close() (err error) {
	s.around(func() { err = s.bound.Destroy() })
	return err
}

// nativeSession takes the OrtSession out of the binding's session, which has
// no accessor for it. A binding that is laid out otherwise is an error at
// load, not a crash.
func nativeSession(s *ort.DynamicAdvancedSession) (unsafe.Pointer, error) {
	return nativeField(s, "s", "ortSession")
}

// nativeField follows fields from a pointer to a struct to a native pointer.
func nativeField(from any, path ...string) (unsafe.Pointer, error) {
	v := reflect.ValueOf(from)
	for _, name := range path {
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
			break
		}
		v = v.Elem().FieldByName(name)
	}
	if !v.IsValid() || v.Kind() != reflect.Pointer || v.IsNil() {
		return nil, fmt.Errorf("this version of onnxruntime_go does not keep %s: use v1.27.0", strings.Join(path, "."))
	}
	return v.UnsafePointer(), nil
}

// configure applies the model's configuration to the session's options.
func configure(s *ort.SessionOptions, c *modelconfig.Config, o Options, pinned cores.Set) error {
	threads := o.threads(pinned)
	steps := []func() error{
		func() error { return s.SetGraphOptimizationLevel(graphLevel(c.GraphLevel)) },
		func() error { return setMode(s, c) },
		func() error { return setThreads(s.SetIntraOpNumThreads, c, intraOpThreads, threads) },
		func() error {
			return setThreads(s.SetInterOpNumThreads, c, interOpThreads, cmp.Or(o.InterOpThreads, 1))
		},
		func() error { return setSwitch(s.SetCpuMemArena, c, "enable_mem_arena") },
		func() error { return setSwitch(s.SetMemPattern, c, "enable_mem_pattern") },
		func() error { return setEntries(s, c) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// threads is how many run a node, where the model does not say.
func (o Options) threads(pinned cores.Set) int {
	return cmp.Or(o.IntraOpThreads, pinned.Len(), o.Threads, 1)
}

// graphLevel maps optimization.graph.level: -1 basic, 1 extended, 2 none, any
// other all.
func graphLevel(level int32) ort.GraphOptimizationLevel {
	switch level {
	case -1:
		return ort.GraphOptimizationLevelEnableBasic
	case 1:
		return ort.GraphOptimizationLevelEnableExtended
	case 2:
		return ort.GraphOptimizationLevelDisableAll
	}
	return ort.GraphOptimizationLevelEnableAll
}

func setMode(s *ort.SessionOptions, c *modelconfig.Config) error {
	parallel, err := backends.ParseExecutionMode(c.Parameters["execution_mode"])
	switch {
	case err != nil:
		return fmt.Errorf("parameter execution_mode: %w", err)
	case parallel:
		return s.SetExecutionMode(ort.ExecutionModeParallel)
	}
	return s.SetExecutionMode(ort.ExecutionModeSequential)
}

// setThreads sets a thread count: the model's own, in which 0 is ONNX
// Runtime's choice, or the standard one, in which less than 0 is.
func setThreads(set func(int) error, c *modelconfig.Config, key string, standard int) error {
	text, ok := c.Parameters[key]
	if !ok {
		return set(max(standard, 0))
	}
	n, err := backends.ParseThreads(text)
	if err != nil {
		return fmt.Errorf("parameter %s: %w", key, err)
	}
	return set(n)
}

func setSwitch(set func(bool) error, c *modelconfig.Config, key string) error {
	text, ok := c.Parameters[key]
	if !ok {
		return nil
	}
	on, err := backends.ParseBool(text)
	if err != nil {
		return fmt.Errorf("parameter %s: %w", key, err)
	}
	return set(on)
}

// setEntries passes on the parameters that are session options by their own
// names, and turns spinning off where the model does not say.
func setEntries(s *ort.SessionOptions, c *modelconfig.Config) error {
	entries := map[string]string{"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
	for key, value := range c.Parameters {
		if strings.HasPrefix(key, "session.") {
			entries[key] = value
		}
	}
	for key, value := range entries {
		if err := s.AddSessionConfigEntry(key, value); err != nil {
			return fmt.Errorf("parameter %s: %w", key, err)
		}
	}
	return nil
}

// shrinkage is the parameter that names the arenas which give their memory
// back after each run.
const shrinkage = "memory.enable_memory_arena_shrinkage"

// shrinking returns those of the named arenas that a session on the device has: the runtime
// refuses runs that name others, which are for other instances of the model.
func shrinking(named string, d backend.Device) string {
	var own []string
	for arena := range strings.SplitSeq(named, ";") {
		switch {
		case arena == "cpu:0":
			own = append(own, arena)
		case d.GPU() && arena == "gpu:"+strconv.Itoa(d.Number):
			own = append(own, "gpu:"+strconv.Itoa(device.Ordinal(d.Number)))
		}
	}
	return strings.Join(own, ";")
}

// coresOf returns the cores of the host policy that the model's instance groups on the device
// name. One session serves all of them, so they have to agree.
func (o Options) coresOf(c *modelconfig.Config, d backend.Device) (cores.Set, error) {
	var all cores.Set
	first := ""
	for _, g := range c.Groups {
		kind := g.Kind
		if kind == modelconfig.KindAuto {
			kind = d.Kind
		}
		if d.GPU() != (kind == modelconfig.KindGPU) {
			continue
		}
		policy := backend.HostPolicy(g.HostPolicy, kind, d.Number)
		set := o.Cores[policy]
		if first != "" && !set.Equal(all) {
			return all, fmt.Errorf("instance group '%s' names host policy '%s', whose cores differ from those of group '%s': the groups share the model's session, give them one policy",
				g.Name, policy, first)
		}
		all, first = set, g.Name
	}
	return all, nil
}
