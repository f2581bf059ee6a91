//go:build cgo

package onnxruntime

import (
	"errors"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// The registry has models loaded again whose failure says nothing of them.
func TestLoadsKeepTheReasonsThatMayPass(t *testing.T) {
	for reason, want := range map[errs.Reason]errs.Reason{
		errs.DeviceMemory: errs.DeviceMemory, errs.DeviceFailed: errs.DeviceFailed, errs.ExecutionFailed: errs.LoadFailed,
	} {
		if got := errs.Of(loadFailed(backend.Version{}, "f", errs.New(reason, "cause"))); got != want {
			t.Errorf("a load that failed for %s fails as %s, want %s", reason, got, want)
		}
	}
	if got := errs.Of(loadFailed(backend.Version{}, "f", errors.New("no such operator"))); got != errs.LoadFailed {
		t.Errorf("a load that failed for its model fails as %s", got)
	}
}

func TestWantOfMemoryIsKnownByItsWords(t *testing.T) {
	for text, want := range map[string]bool{
		"Exception during initialization: bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1073741824": true,
		"Exception during initialization: std::bad_alloc":                                                                     true, "CUDA failure 2: out of memory": true, "no such operator": false,
	} {
		if got := outOfMemory(errors.New(text)); got != want {
			t.Errorf("%q is a want of memory: %t", text, got)
		}
	}
}
