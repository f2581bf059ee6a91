package warmup_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
	"github.com/nereid-serving/nereid/services/worker/internal/warmup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// instance runs a batch as the test says.
type instance func(backend.Batch)

func (instance) Credits() int                { return 1 }
func (run instance) Execute(b backend.Batch) { run(b) }
func (instance) Close() error                { return nil }

// model is a version in a directory of its own, whose warm-up files are
// written beforehand.
func model(t *testing.T, files map[string]string, samples ...modelconfig.WarmupSample) backend.Version {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, "warmup", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return backend.Version{
		Ref: infer.ModelRef{Name: "m", Version: 1}, ModelDir: dir,
		Config: &modelconfig.Config{
			Name: "m", MaxBatchSize: 8, Warmup: samples,
			Inputs: []modelconfig.IO{{Name: "x", Datatype: tensor.Int16, Dims: tensor.Shape{2}}},
		},
	}
}

func one(in modelconfig.WarmupInput) modelconfig.WarmupSample {
	return modelconfig.WarmupSample{Name: "s", BatchSize: 1, Count: 1, Inputs: []modelconfig.WarmupInput{in}}
}

// run warms an instance up that answers everything, and returns what it got:
// a line for each execution.
func run(t *testing.T, v backend.Version) []string {
	t.Helper()
	var lines []string
	err := warm(t.Context(), v, func(b backend.Batch) {
		lines = append(lines, describe(t, b))
		for i := range b.Requests() {
			b.Respond(i, &infer.Response{Final: true})
		}
		b.InputDone()
		b.InferDone()
		b.Executed()
		b.Done()
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func warm(ctx context.Context, v backend.Version, in instance) error {
	samples, err := warmup.Prepare(v)
	if err != nil {
		return err
	}
	_, err = samples.Run(ctx, in, nil)
	return err
}

func describe(t *testing.T, b backend.Batch) string {
	t.Helper()
	var parts []string
	for _, r := range b.Requests() {
		for _, in := range r.Inputs {
			data, err := in.Data.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			parts = append(parts, fmt.Sprintf("%s %s%v %x", in.Name, in.Datatype, in.Shape, data))
		}
	}
	return fmt.Sprintf("%d rows: %s", b.BatchSize(), strings.Join(parts, ", "))
}

func TestSampleRunsAsOneBatchAsOftenAsItCounts(t *testing.T) {
	v := model(
		t, map[string]string{"values": "abcdef", "deep/er/strings": "\x01\x00\x00\x00a\x00\x00\x00\x00"},
		modelconfig.WarmupSample{Name: "zero", BatchSize: 2, Count: 2, Inputs: []modelconfig.WarmupInput{
			{Name: "x", Datatype: tensor.Int16, Dims: tensor.Shape{2}},
		}},
		modelconfig.WarmupSample{Name: "file", BatchSize: 1, Count: 1, Inputs: []modelconfig.WarmupInput{
			{Name: "control", Datatype: tensor.Bytes, Dims: tensor.Shape{2}, Kind: modelconfig.WarmupFile, File: "deep/er/strings"},
			{Name: "x", Datatype: tensor.Int16, Dims: tensor.Shape{2}, Kind: modelconfig.WarmupFile, File: "values"},
		}},
		one(modelconfig.WarmupInput{Name: "x", Datatype: tensor.Bytes, Dims: tensor.Shape{2}, Kind: modelconfig.WarmupRandom}),
	)
	want := []string{
		"2 rows: x INT16[1,2] 00000000, x INT16[1,2] 00000000",
		"2 rows: x INT16[1,2] 00000000, x INT16[1,2] 00000000",
		"1 rows: control BYTES[2] 010000006100000000, x INT16[1,2] 61626364",
		"1 rows: x BYTES[1,2] 0000000000000000",
	}
	if diff := cmp.Diff(want, run(t, v)); diff != "" {
		t.Error(diff)
	}
}

func TestModelWithoutBatchDimension(t *testing.T) {
	v := model(t, nil, one(modelconfig.WarmupInput{Name: "x", Datatype: tensor.Int16, Dims: tensor.Shape{2}}))
	v.Config.MaxBatchSize = 0
	if diff := cmp.Diff([]string{"1 rows: x INT16[2] 00000000"}, run(t, v)); diff != "" {
		t.Error(diff)
	}
}

// Random values are those that a model of the datatype can compute with, and
// the same at each load.
func TestRandomValues(t *testing.T) {
	sane := func(x float64) bool { return x >= 0 && x <= 1 }
	checks := map[tensor.Datatype]func([]byte) bool{
		tensor.Bool: func(b []byte) bool { return b[0] <= 1 },
		tensor.FP16: func(b []byte) bool { return b[1]>>2 == 0x38>>2 }, // from 0.5 to 1
		tensor.BF16: func(b []byte) bool {
			return sane(float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16)))
		},
		tensor.FP32: func(b []byte) bool { return sane(float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))) },
		tensor.FP64: func(b []byte) bool { return sane(math.Float64frombits(binary.LittleEndian.Uint64(b))) },
	}
	for _, d := range tensor.Datatypes() {
		t.Run(d.String(), func(t *testing.T) {
			v := model(t, nil, one(modelconfig.WarmupInput{Name: "x", Datatype: d, Dims: tensor.Shape{100}, Kind: modelconfig.WarmupRandom}))
			first := run(t, v)
			if diff := cmp.Diff(first, run(t, v)); diff != "" {
				t.Errorf("differs between loads: %s", diff)
			}
			if zeros := strings.Repeat("00", 100*max(d.Size(), 1)); d != tensor.Bytes && strings.Contains(first[0], zeros) {
				t.Error("nothing but zeros")
			}
			_ = warm(t.Context(), v, func(b backend.Batch) {
				data, _ := b.Requests()[0].Inputs[0].Data.Bytes()
				for ; checks[d] != nil && len(data) > 0; data = data[d.Size():] {
					if !checks[d](data) {
						t.Errorf("%x is no value to compute with", data[:d.Size()])
					}
				}
				b.Done()
			})
		})
	}
}

func TestInputsThatCannotBeMade(t *testing.T) {
	file := func(name string, d tensor.Datatype, dims ...int64) modelconfig.WarmupSample {
		return one(modelconfig.WarmupInput{Name: "x", Datatype: d, Dims: dims, Kind: modelconfig.WarmupFile, File: name})
	}
	tests := map[string]struct {
		sample modelconfig.WarmupSample
		want   string
	}{
		"no such file":         {file("none", tensor.Int16, 2), "no such file"},
		"too short":            {file("values", tensor.Int16, 4), "warmup setting expects 8 bytes, but the data provided from values only has 6 bytes"},
		"not the strings":      {file("values", tensor.Bytes, 1), "does not hold 1 strings, each after its length in 4 bytes"},
		"more strings":         {file("values", tensor.Bytes, 2), "expects 8 bytes"},
		"above the directory":  {file("../config.pbtxt", tensor.Int8, 1), "escapes"},
		"link out":             {file("out", tensor.Int8, 1), "escapes"},
		"directory":            {file("deep", tensor.Int8, 1), "is not a regular file"},
		"pipe":                 {file("pipe", tensor.Int8, 1), "is not a regular file"},
		"shape beyond numbers": {file("values", tensor.Int64, math.MaxInt64), "not the shape of a tensor"},
		"unknown datatype":     {file("values", tensor.Invalid, 1), "not the shape of a tensor"},
		"batch beyond memory": {modelconfig.WarmupSample{
			Name: "s", BatchSize: 1 << 20, Count: 1,
			Inputs: []modelconfig.WarmupInput{{Name: "x", Datatype: tensor.Int8, Dims: tensor.Shape{4097}}},
		}, "4097 bytes for each request are too much"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			v := model(t, map[string]string{"values": "abcdef", "deep/x": ""}, tt.sample)
			dir := filepath.Join(v.ModelDir, "warmup")
			if err := errors.Join(
				os.WriteFile(filepath.Join(v.ModelDir, "config.pbtxt"), []byte("secret"), 0o600),
				os.Symlink("../config.pbtxt", filepath.Join(dir, "out")),
				unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600),
			); err != nil {
				t.Fatal(err)
			}
			err := warm(t.Context(), v, func(backend.Batch) { t.Error("it ran") })
			if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "failed to run warmup sample 's': input 'x': ") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

func TestFirstFailureEndsTheWarmup(t *testing.T) {
	tests := map[string]struct {
		run  instance
		want string
	}{
		"error": {func(b backend.Batch) {
			b.Respond(0, &infer.Response{Err: errs.New(errs.ExecutionFailed, "An Error Occurred")})
			b.Respond(0, &infer.Response{Final: true}) // too late
			b.Respond(1, &infer.Response{Err: errors.New("foreign")})
			b.Done()
		}, "failed to run warmup sample 's': An Error Occurred; foreign;"},
		"no answer": {func(b backend.Batch) {
			b.Respond(0, &infer.Response{}) // of a decoupled model, and not its last
			b.Respond(1, &infer.Response{Final: true})
			b.Done()
			b.Done()
		}, "failed to run warmup sample 's': the backend ended the batch without an answer to request 0;"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			sample := one(modelconfig.WarmupInput{Name: "x", Datatype: tensor.Int16, Dims: tensor.Shape{2}})
			sample.BatchSize, sample.Count = 2, 5
			runs := 0
			err := warm(t.Context(), model(t, nil, sample), func(b backend.Batch) {
				runs++
				tt.run(b)
			})
			if got := errs.From(err); got.Msg != tt.want || got.Model != "m" || errs.Of(err) != errs.LoadFailed {
				t.Errorf("%v, want %s", err, tt.want)
			}
			if runs != 1 {
				t.Errorf("%d executions, want none after the failure", runs)
			}
		})
	}
}

// stoppable ends its batch when it is stopped.
type stoppable struct {
	instance
	stop chan struct{}
}

func (s stoppable) Stop() bool {
	close(s.stop)
	return true
}

// An execution that does not heed that it was canceled is stopped with its instance.
func TestCanceledWarmupThatGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sample := one(modelconfig.WarmupInput{Name: "x", Datatype: tensor.Int16, Dims: tensor.Shape{2}})
		samples, err := warmup.Prepare(model(t, nil, sample))
		if err != nil {
			t.Fatal(err)
		}
		in := stoppable{stop: make(chan struct{})}
		in.instance = func(b backend.Batch) {
			cancel()
			go func() {
				<-in.stop
				b.Done()
			}()
		}
		if _, err := samples.Run(ctx, in, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want that it was canceled", err)
		}
	})
}

// A load that is given up stops the execution, and ends when that has ended.
func TestCanceledWarmup(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	sample := one(modelconfig.WarmupInput{Name: "x", Datatype: tensor.Int16, Dims: tensor.Shape{2}})
	sample.Count = 1000
	ended := false
	err := warm(ctx, model(t, nil, sample), func(b backend.Batch) {
		stop := make(chan bool)
		b.OnCancel(func() { close(stop) })
		cancel()
		go func() {
			<-stop
			if !b.Canceled(0) {
				t.Error("stopped, but not canceled")
			}
			b.Respond(0, &infer.Response{Err: errs.New(errs.Canceled, "")})
			ended = true
			b.Done()
		}()
	})
	if !errors.Is(err, context.Canceled) || !ended {
		t.Errorf("%v, ended %v; want the end of the execution", err, ended)
	}
}
