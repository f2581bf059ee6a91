//go:build cgo

package onnxruntime_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/backend/onnxruntime"
)

var _ backend.Backend = (*onnxruntime.Backend)(nil)

func TestNameAndVersion(t *testing.T) {
	b, _ := open(t)
	if !regexp.MustCompile(`^1\.\d+\.\d+`).MatchString(b.Version()) {
		t.Errorf("version %q", b.Version())
	}
}

func TestLibraryThatCannotBeOpened(t *testing.T) {
	notLibrary := filepath.Join(t.TempDir(), "libonnxruntime.so")
	if err := os.WriteFile(notLibrary, []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/nowhere/libonnxruntime.so", notLibrary, "libm.so.6"} {
		_, err := onnxruntime.Open(path, onnxruntime.Options{Pool: tensor.NewPool(0)})
		if errs.Of(err) != errs.LibraryMissing {
			t.Errorf("%s: %v, want %s", path, err, errs.LibraryMissing)
			continue
		}
		for _, want := range []string{path, "make deps", "--onnxruntime-library"} {
			if msg := errs.From(err).Msg; !strings.Contains(msg, want) {
				t.Errorf("%s: %q does not name %q", path, msg, want)
			}
		}
	}
}

func TestOpenTwice(t *testing.T) {
	open(t)
	_, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{Pool: tensor.NewPool(0)})
	if errs.Of(err) != errs.LibraryMissing || !strings.Contains(err.Error(), "already open") {
		t.Errorf("the second Open: %v", err)
	}
}

func TestOutputsOutliveTheBackend(t *testing.T) {
	var r *infer.Response
	ones := make([]int32, 9000)
	for i := range ones {
		ones[i] = 1
	}
	t.Run("life of a backend", func(t *testing.T) {
		b, err := onnxruntime.Open(onnxmodel.Library(t), onnxruntime.Options{Pool: tensor.NewPool(0)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if n := b.Held(); n != 1 {
				t.Errorf("%d outputs are held, want 1", n)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
		in := instance(t, b, onnxmodel.NonZero(tensor.Int32, "n"), config(0,
			ios(io("INPUT0", tensor.Int32, -1)), ios(io("OUTPUT0", tensor.Int64, 1, -1))))
		r = run(t, in, request(1, value{"INPUT0", tensor.Int32, tensor.Shape{9000}, pack(ones)})).response(0)
	})
	if r == nil {
		t.Skip("no library")
	}
	want := make([]int64, 9000)
	for i := range want {
		want[i] = int64(i)
	}
	if d := cmp.Diff(pack(want), outputs(t, r)[0].Data); d != "" {
		t.Error("the output changed when the backend was closed")
	}
}

func TestInputsAreReleasedOnce(t *testing.T) {
	b, _ := open(t)
	in := addSub(t, b, 8, 2)
	freed := 0
	counted := func() *infer.Request {
		r := addSubRequest(1, 2, 1, 2)
		for i := range r.Inputs {
			data, _ := r.Inputs[i].Data.Bytes()
			r.Inputs[i].Data = tensor.InBuffer(tensor.Wrap(data, false, func(*tensor.Buffer) { freed++ }), 0, int64(len(data)))
		}
		return r
	}
	bad := counted()
	bad.Inputs[0].Datatype = tensor.FP64
	got := run(t, in, counted(), bad, counted())
	if freed != 6 {
		t.Errorf("%d inputs were released, want 6", freed)
	}
	outputs(t, got.response(0))
	outputs(t, got.response(2))
}

func TestInstancesShareASession(t *testing.T) {
	b, _ := open(t)
	v := version(t, onnxmodel.AddSub(tensor.Int32, "batch", 5000), config(8,
		ios(io("INPUT0", tensor.Int32, 5000), io("INPUT1", tensor.Int32, 5000)),
		ios(io("OUTPUT0", tensor.Int32, 5000), io("OUTPUT1", tensor.Int32, 5000))))
	m, err := b.Load(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var all sync.WaitGroup
	for k := range int32(4) {
		in, err := m.NewInstance(t.Context(), backend.InstanceSpec{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if in.Credits() != 1 {
			t.Errorf("an instance takes %d batches at a time, want 1", in.Credits())
		}
		all.Go(func() {
			for i := range int32(20) {
				got := run(t, in, addSubRequest(1, 5000, i, k), addSubRequest(2, 5000, k, i))
				if d := cmp.Diff(addSubAnswer(2, 5000, k, i), outputs(t, got.response(1))); d != "" {
					t.Error("instances disturb each other")
				}
				got.response(0).Release()
			}
		})
	}
	all.Wait()
}
