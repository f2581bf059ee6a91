//go:build cgo

package onnxruntime

import (
	"errors"
	"fmt"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Backend is the ONNX Runtime backend. It is safe for concurrent use.
type Backend struct {
	options  Options
	engine   *engine
	pools    *pools
	trimmer  *trimmer
	openvino *openVINO
	cuda     *cuda
}

// Open opens the library at path and makes the process's ONNX Runtime
// environment, of which there is one: Open is called once, from one
// goroutine, and again only after [Backend.Close]. If the library is absent
// or unfit the error's reason is library_missing; other backends are not
// affected.
func Open(path string, o Options) (*Backend, error) {
	e, err := openEngine(path)
	if err != nil {
		return nil, missing(path, err)
	}
	b := &Backend{options: o, engine: e}
	if err := b.openEnvironment(path); err != nil {
		e.closePools(b.pools)
		e.close()
		return nil, missing(path, err)
	}
	b.trimmer, b.openvino, b.cuda = startTrimmer(e.trim), newOpenVINO(e, b.pools, o.OpenVINOLibrary, path), newCUDA(o, path)
	return b, nil
}

func (b *Backend) openEnvironment(path string) (err error) {
	if ort.IsInitialized() {
		return errors.New("it is already open in this process")
	}
	if b.pools, err = b.engine.openPools(b.options); err != nil {
		return err
	}
	ort.SetSharedLibraryPath(path)
	// The runtime would write each error to standard error besides returning
	// it; the caller logs or answers the returned one.
	return ort.InitializeEnvironment(ort.WithLogLevelFatal())
}

func missing(path string, err error) error {
	return errs.Wrap(errs.LibraryMissing, err,
		"ONNX Runtime cannot be opened from %q: %v; install version 1.24 or later with `make deps`, or name its path with --onnxruntime-library",
		path, err)
}

// Version returns the version of the library, such as 1.31.1.
func (b *Backend) Version() string { return b.engine.version() }

// Held returns how many outputs in memory of the runtime's own have not been
// released by those who got them.
func (b *Backend) Held() int64 { return b.engine.held.Load() }

// Close ends the environment. All models are closed by then; responses may
// still hold outputs.
func (b *Backend) Close() error {
	b.trimmer.close()
	b.openvino.close()
	err := ort.DestroyEnvironment()
	b.engine.closePools(b.pools)
	b.engine.close()
	if err != nil {
		return fmt.Errorf("close ONNX Runtime: %w", err)
	}
	return nil
}
