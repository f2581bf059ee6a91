//go:build cgo

package onnxruntime

import (
	"context"
	"path/filepath"
	"testing"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/cores"
)

func TestLoadEndsWithItsContext(t *testing.T) {
	b, err := Open(onnxmodel.Library(t), Options{Pool: tensor.NewPool(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	file := filepath.Join(t.TempDir(), "model.onnx")
	onnxmodel.Relu(tensor.FP32, 2).WriteFile(t, file)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := b.newSession(ctx, file, backend.Version{Config: new(modelconfig.Config)}, cores.Set{}); err == nil {
		_ = s.close()
		t.Error("the runtime loaded on")
	}
	s, err := b.newSession(t.Context(), file, backend.Version{Config: new(modelconfig.Config)}, cores.Set{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

func TestSessionOfAnotherLayoutIsAnError(t *testing.T) {
	if _, err := nativeSession(&ort.DynamicAdvancedSession{}); err == nil {
		t.Error("a session without a native one was accepted")
	}
}
