package python_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

const imports = `
import os, signal, sys, time
import numpy as np
import triton_python_backend_utils as pb
def value(request, name):
    return pb.get_input_tensor_by_name(request, name).as_numpy()
def give(**outputs):
    return pb.InferenceResponse([pb.Tensor(name, np.asarray(array)) for name, array in outputs.items()])
`

const addSub = imports + `
class TritonPythonModel:
    def execute(self, requests):
        return [give(SUM=value(r, "A") + value(r, "B"), DIFFERENCE=value(r, "A") - value(r, "B")) for r in requests]
`

func numbers() modelconfig.Config {
	return modelconfig.Config{Inputs: io(tensor.FP32, "A", "B"), Outputs: io(tensor.FP32, "SUM", "DIFFERENCE")}
}

func TestModelsAnswer(t *testing.T) {
	w := run(t, addSub, options{config: numbers()})
	if got := w.show(w.infer(ask(floats("A", 1, 2), floats("B", 10, 20)))); got != "SUM[2]=11,22 DIFFERENCE[2]=-9,-18" {
		t.Error(got)
	}
	one := ask(floats("A", 1), floats("B", 1))
	one.Outputs = []infer.Output{{Name: "DIFFERENCE"}}
	both := w.send(ask(floats("A", 3), floats("B", 1)), one)
	if a, b := w.show(w.all(both[0])[0]), w.show(w.all(both[1])[0]); a != "SUM[1]=4 DIFFERENCE[1]=2" || b != "DIFFERENCE[1]=0" {
		t.Error(a, "and", b)
	}
}

func TestRequestedOutputsAreAllWhereNoneAreNamed(t *testing.T) {
	config, err := modelconfig.FromJSON([]byte(`{"name": "m", "backend": "python",
		"input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [-1]}, {"name": "B", "data_type": "TYPE_FP32", "dims": [-1]}],
		"output": [{"name": "SUM", "data_type": "TYPE_STRING", "dims": [-1]}, {"name": "DIFFERENCE", "data_type": "TYPE_FP32", "dims": [-1]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        return [give(SUM=np.array(sorted(r.requested_output_names()), np.object_), DIFFERENCE=value(r, "A")) for r in requests]
`, options{config: *config})
	one := ask(floats("A", 1), floats("B", 1))
	one.Outputs = []infer.Output{{Name: "SUM"}}
	both := w.send(ask(floats("A", 1), floats("B", 1)), one)
	if a, b := w.show(w.all(both[0])[0]), w.show(w.all(both[1])[0]); a != "SUM[2]=DIFFERENCE,SUM DIFFERENCE[1]=1" || b != "SUM[1]=SUM" {
		t.Error(a, "and", b)
	}
}

// TestLargeTensorsAreInSharedMemory has so many of so many sizes that files are made,
// used again and dropped on both sides.
func TestLargeTensorsAreInSharedMemory(t *testing.T) {
	w := run(t, addSub, options{config: numbers()})
	for _, n := range []int{1023, 1024, 5000, 1 << 18, 1 << 19, 1 << 20} {
		for range 6 {
			a, b := make([]float32, n), make([]float32, n)
			for i := range a {
				a[i], b[i] = float32(i), 1
			}
			r := w.infer(ask(floats("A", a...), floats("B", b...)))
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			data, err := r.Outputs[0].Data.Bytes()
			if err != nil {
				t.Fatal(err)
			}
			for i := range a {
				a[i]++
			}
			want := floats("", a...)
			if expected, _ := want.Data.Bytes(); !bytes.Equal(data, expected) {
				t.Fatalf("%d elements are not the sums", n)
			}
			r.Release()
		}
	}
}

func TestTextsAndRequestsArrive(t *testing.T) {
	w := run(t, imports+`
import json
class TritonPythonModel:
    def initialize(self, args):
        self.args = args
    def execute(self, requests):
        out = []
        for r in requests:
            facts = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), json.loads(r.parameters()), [list(map(bytes.decode, value(r, "T")))]]
            out.append(pb.InferenceResponse([pb.Tensor("FACTS", np.array([json.dumps(facts), self.args["model_instance_name"], "é\n\"\\"], object))], parameters={"n": 3, "s": "x", "b": True}))
        return out
`, options{config: modelconfig.Config{Inputs: io(tensor.Bytes, "T"), Outputs: io(tensor.Bytes, "FACTS")}})
	r := ask(texts("T", "ä", ""))
	r.ID, r.Sequence, r.Timeout = "id\n\"1\"", infer.Sequence{ID: 1 << 63, Start: true}, 5000
	r.Parameters = []infer.Parameter{{Key: "k", Value: "v"}, {Key: "f", Value: 2.0}, {Key: "i", Value: int64(-1)}, {Key: "y", Value: false}}
	got := w.show(w.infer(r))
	want := `FACTS[3]=["id\n\"1\"", 9223372036854775808, 1, 5, {"k": "v", "f": 2.0, "i": -1, "y": false}, [["\u00e4", ""]]],m_0_0,é` + "\n\"\\ n:int64=3 s:string=x b:bool=true"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	long := strings.Repeat("long ", 10000)
	if got := w.show(w.infer(ask(texts("T", long)))); !strings.Contains(got, long) {
		t.Errorf("a long text came as %.100s", got)
	}
}

func TestErrorsKeepTheirCodes(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            code = value(r, "CODE")[0].decode()
            if code == "raise":
                raise ValueError("no such thing")
            out.append(give(X=np.ones(1, np.float32)) if code == "" else pb.InferenceResponse(error=pb.TritonError("said " + code, getattr(pb.TritonError, code))))
        return out
`, options{config: modelconfig.Config{Inputs: io(tensor.Bytes, "CODE"), Outputs: io(tensor.FP32, "X")}})
	for code, reason := range map[string]errs.Reason{
		"UNKNOWN": errs.ModelUnknown, "INTERNAL": errs.ExecutionFailed, "NOT_FOUND": errs.ModelFoundNot, "INVALID_ARG": errs.ModelRefused,
		"UNAVAILABLE": errs.ModelBusy, "UNSUPPORTED": errs.ModelUnsupported, "ALREADY_EXISTS": errs.AlreadyExists, "CANCELLED": errs.Canceled,
	} {
		w.fails(w.infer(ask(texts("CODE", code))), reason, "said "+code)
	}
	some := w.send(ask(texts("CODE", "")), ask(texts("CODE", "NOT_FOUND")), ask(texts("CODE", "")))
	w.fails(w.all(some[1])[0], errs.ModelFoundNot, "said NOT_FOUND")
	if a, b := w.show(w.all(some[0])[0]), w.show(w.all(some[2])[0]); a != "X[1]=1" || b != "X[1]=1" {
		t.Errorf("beside an error: %s, %s", a, b)
	}
	all := w.send(ask(texts("CODE", "")), ask(texts("CODE", "raise")))
	for _, n := range all {
		w.fails(w.all(n)[0], errs.ExecutionFailed, "ValueError: no such thing")
	}
	if !strings.Contains(w.logged(), "Traceback") {
		t.Error("the traceback is not in the log")
	}
}

const counting = imports + `
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            sender = r.get_response_sender()
            for i in range(int(value(r, "N")[0])):
                if sender.is_cancelled():
                    break
                sender.send(give(I=np.array([i], np.float32)))
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
`

func decoupled() modelconfig.Config {
	return modelconfig.Config{Decoupled: true, Inputs: io(tensor.FP32, "N"), Outputs: io(tensor.FP32, "I")}
}

// TestSendersWaitForTheirClients has a client that reads nothing: the sender stops, and
// goes on when it reads.
func TestSendersWaitForTheirClients(t *testing.T) {
	const n = 1000
	w := run(t, counting, options{config: decoupled()})
	request := w.send(ask(floats("N", n)))[0]
	read := 0
	for final := false; !final; {
		list := w.await(request, read+1)
		if len(list) > read+512 {
			t.Fatalf("%d responses are there, of which the client has read %d", len(list), read)
		}
		for ; read < len(list); read++ {
			final = list[read].Final
			if got := w.show(list[read]); got != "I[1]="+strconv.Itoa(read) && !final {
				t.Fatalf("response %d is %s", read, got)
			}
		}
	}
	if read != n+1 {
		t.Errorf("%d responses, want %d and an end", read, n)
	}
}

func TestCancellationReachesTheModel(t *testing.T) {
	w := run(t, counting, options{config: decoupled()})
	request := w.send(ask(floats("N", 1e6)))[0]
	w.await(request, 1)
	w.executor.Cancel(infer.BatchID{Epoch: 1, Number: request}, infer.RequestID{Origin: 1, Number: request})
	w.all(request) // ends long before the last, which the test would not wait for
	next := w.send(ask(floats("N", 1)))[0]
	if got := w.all(next); len(got) != 2 || w.show(got[0]) != "I[1]=0" {
		t.Errorf("then %d responses", len(got))
	}
}

// One request of a batch is canceled, while execute runs: the model sees it of that one.
func TestCancellationOfOneRequestReachesTheModel(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        open(value(requests[0], "X")[0].decode(), "w").close()
        while not requests[1].is_cancelled():
            time.sleep(0.001)
        return [pb.InferenceResponse([pb.Tensor("Y", np.array([str(r.is_cancelled())], object))]) for r in requests]
`, options{config: modelconfig.Config{Inputs: io(tensor.Bytes, "X"), Outputs: io(tensor.Bytes, "Y")}})
	runs := filepath.Join(t.TempDir(), "runs")
	if err := syscall.Mkfifo(runs, 0o600); err != nil {
		t.Fatal(err)
	}
	batch := w.send(ask(texts("X", runs)), ask(texts("X", "")))
	if _, err := os.ReadFile(runs); err != nil { // once the model has opened it
		t.Fatal(err)
	}
	w.executor.Cancel(infer.BatchID{Epoch: 1, Number: batch[1]}, infer.RequestID{Origin: 1, Number: batch[1]})
	if got := w.show(w.all(batch[0])[0]); got != "Y[1]=False" {
		t.Error(got)
	}
	w.all(batch[1])
}

const dying = imports + `
class TritonPythonModel:
    def execute(self, requests):
        for r in requests:
            how = value(r, "HOW")[0].decode()
            if how == "exit":
                print("last words", file=sys.stderr)
                os._exit(3)
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "garbage":
                os.write(3, b"this is no message at all")
                time.sleep(3600)
            if how == "close":
                os.close(3)
                time.sleep(3600)
            if how == "hang":
                open(value(r, "HOW")[1].decode(), "w").close()
                time.sleep(3600)
            if how == "print":
                print("x" * 100000 + "\x80", flush=True)
                os.write(1, b"\xff\x00\n")
            if how == "leave":
                if os.fork() == 0:
                    time.sleep(3600)
                os._exit(0)
        return [pb.InferenceResponse([pb.Tensor("PID", np.array([str(os.getpid())], object))]) for r in requests]
`

func deaths() modelconfig.Config {
	return modelconfig.Config{Inputs: io(tensor.Bytes, "HOW"), Outputs: io(tensor.Bytes, "PID")}
}

func TestStubsThatEndAreStartedAgain(t *testing.T) {
	w := run(t, dying, options{config: deaths()})
	for _, tt := range []struct {
		how, cause string
		unknown    bool // whether it had begun what waited, if it had it
	}{
		{"exit", "it ended with exit status 3; its last line was: last words", false},
		{"kill", "it was killed (SIGKILL)", false},
		{"garbage", "it was killed: a stub may not send a message of", true},
		{"close", "it was killed", false},
		{"leave", "it ended", false},
	} {
		t.Run(tt.how, func(t *testing.T) {
			before := w.pid()
			batch := w.send(ask(texts("HOW", tt.how)), ask(texts("HOW", "")))
			waiting := w.send(ask(texts("HOW", "")))[0]
			for _, n := range batch {
				list := w.all(n)
				if len(list) != 1 {
					t.Errorf("%d responses", len(list))
				}
				w.fails(list[0], errs.StubUnhealthy, "Stub process 'm_0_0' is not healthy: "+tt.cause)
			}
			if last := w.all(waiting)[0]; tt.unknown && last.Err != nil {
				w.fails(last, errs.StubUnhealthy, "Stub process 'm_0_0' is not healthy: "+tt.cause)
			} else if got := w.show(last); got == before || !strings.HasPrefix(got, "PID") {
				t.Errorf("what waited got %s, as before: %s", got, before)
			}
			expectGone(t, strings.TrimPrefix(before, "PID[1]="))
		})
	}
	if got := w.show(w.infer(ask(texts("HOW", "print")))); !strings.HasPrefix(got, "PID") {
		t.Error(got)
	}
}

// What a stub has begun fails with it, though the batch before has ended in its life.
func TestPipelinedBatchesThatHaveBegunAreNotRunAgain(t *testing.T) {
	w := run(t, dying, options{config: deaths()})
	before := w.pid()
	first := w.send(ask(texts("HOW", "")))[0]
	second := w.send(ask(texts("HOW", "kill")))[0]
	if got := w.show(w.all(first)[0]); got != before {
		t.Errorf("the first ran in %s, not in %s", got, before)
	}
	w.fails(w.all(second)[0], errs.StubUnhealthy, "Stub process 'm_0_0' is not healthy: it was killed (SIGKILL)")
	if got := w.pid(); got == before {
		t.Error("the stub lives")
	}
}

// Nobody waits for what was canceled while its stub was at another batch.
func TestPipelinedBatchesThatWereCanceledAreNotExecuted(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    runs = 0
    def execute(self, requests):
        self.runs += 1
        for r in requests:
            if value(r, "X")[0]:
                open(value(r, "X")[0].decode(), "w").close()
                open(value(r, "X")[1].decode()).close()
        return [pb.InferenceResponse([pb.Tensor("Y", np.array([str(self.runs)], object))]) for r in requests]
`, options{config: modelconfig.Config{Inputs: io(tensor.Bytes, "X"), Outputs: io(tensor.Bytes, "Y")}})
	begun, gate := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "gate")
	if err := errors.Join(syscall.Mkfifo(begun, 0o600), syscall.Mkfifo(gate, 0o600)); err != nil {
		t.Fatal(err)
	}
	first := w.send(ask(texts("X", begun, gate)))[0]
	if _, err := os.ReadFile(begun); err != nil { // once the model has opened it
		t.Fatal(err)
	}
	second := w.send(ask(texts("X", "")))[0]
	w.executor.Cancel(infer.BatchID{Epoch: 1, Number: second}, infer.RequestID{Origin: 1, Number: second})
	if err := os.WriteFile(gate, nil, 0); err != nil {
		t.Fatal(err)
	}
	if got := w.show(w.all(first)[0]); got != "Y[1]=1" {
		t.Error(got)
	}
	if last := w.all(second)[0]; errs.Of(last.Err) != errs.Canceled {
		t.Errorf("what was canceled got %v", w.show(last))
	}
	if got := w.show(w.infer(ask(texts("X", "")))); got != "Y[1]=2" {
		t.Errorf("the third is %s: the second has run", got)
	}
}

// expectGone wants nothing to be left of the group of a stub. What was killed is there
// until its parent has been told.
func expectGone(t *testing.T, stub string) {
	t.Helper()
	pid, err := strconv.Atoi(stub)
	if err != nil {
		t.Fatal(err)
	}
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(patience); !errors.Is(syscall.Kill(-pid, 0), syscall.ESRCH); <-poll.C {
		if time.Now().After(end) {
			t.Fatalf("of the stub's group %d something is left", pid)
		}
	}
}

func (w *world) pid() string {
	w.t.Helper()
	return w.show(w.infer(ask(texts("HOW", ""))))
}

// hang has the model hang with a request, which is canceled then, and returns its number.
func (w *world) hang() uint64 {
	w.t.Helper()
	runs := filepath.Join(w.t.TempDir(), "runs")
	if err := syscall.Mkfifo(runs, 0o600); err != nil {
		w.t.Fatal(err)
	}
	n := w.send(ask(texts("HOW", "hang", runs)))[0]
	if _, err := os.ReadFile(runs); err != nil { // once the model has opened it
		w.t.Fatal(err)
	}
	w.executor.Cancel(infer.BatchID{Epoch: 1, Number: n}, infer.RequestID{Origin: 1, Number: n})
	return n
}

func TestBatchesThatNobodyWaitsForAreKilled(t *testing.T) {
	w := run(t, dying, options{config: deaths(), settings: map[string]string{"stub-timeout-seconds": "1"}})
	before := w.pid()
	n := w.hang()
	if after := w.pid(); after == before {
		t.Error("the stub lives")
	}
	if r := w.all(n)[0]; r.Err == nil {
		t.Error("the canceled request has a result")
	}
}

// TestDeathsBeforeMessagesAreRead has a stub die that has not read all that it was sent,
// whose socket then ends otherwise.
func TestDeathsBeforeMessagesAreRead(t *testing.T) {
	w := run(t, dying, options{config: deaths()})
	before := w.pid()
	w.hang()
	pid, err := strconv.Atoi(strings.TrimPrefix(before, "PID[1]="))
	if err == nil {
		err = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.pid()
	ended := w.logs.FilterMessage("stub ended").All()
	if len(ended) != 1 || !strings.HasPrefix(ended[0].ContextMap()["cause"].(string), "it was killed (SIGKILL)") {
		t.Errorf("the log has %v", ended)
	}
}

// hanging hangs where its version's directory has a pipe of the name, to which it writes
// its number before.
const hanging = imports + `
def hang(where):
    file = os.path.join(pb.get_model_dir(), where)
    if os.path.exists(file):
        with open(file, "w") as pipe:
            pipe.write(str(os.getpid()))
        while True:
            time.sleep(3600)
class TritonPythonModel:
    def initialize(self, args):
        hang("initialize")
    def execute(self, requests):
        hang("execute")
        return [give(SUM=value(r, "A")) for r in requests]
    def finalize(self):
        hang("finalize")
`

// What hangs is killed when there is no time for it any more, long before its own
// time is over, which would be an hour.
func TestWhatHangsIsStopped(t *testing.T) {
	for _, where := range []string{"initialize", "execute", "finalize"} {
		t.Run(where, func(t *testing.T) {
			w := run(t, hanging, options{config: numbers(), settings: map[string]string{"stub-timeout-seconds": "3600"}})
			pipe := filepath.Join(w.version.Dir, where)
			if err := syscall.Mkfifo(pipe, 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			var n uint64
			if where == "initialize" {
				go func() {
					_, err := w.model.NewInstance(ctx, backend.InstanceSpec{Name: "m_0_1"})
					ended <- err
				}()
			} else {
				if where == "execute" {
					n = w.send(ask(floats("A", 1)))[0]
				}
				go func() { ended <- w.executor.Close(ctx, w.id) }()
			}
			pid, err := os.ReadFile(pipe)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			select {
			case err := <-ended:
				if (err != nil) != (where == "initialize") {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("it has not ended")
			}
			if where == "execute" {
				list := w.all(n)
				if len(list) != 1 {
					t.Errorf("%d responses", len(list))
				}
				w.fails(list[0], errs.StubUnhealthy, "Stub process 'm_0_0' is not healthy: it was killed: its instance was stopped")
			}
			expectGone(t, string(pid))
		})
	}
}

func TestLoadSaysWhatIsWrong(t *testing.T) {
	for name, tt := range map[string]struct{ code, want string }{
		"an exception":   {imports + "class TritonPythonModel:\n    def initialize(self, args): raise ValueError('no weights')\n    def execute(self, requests): pass\n", "no weights"},
		"a syntax error": {"class TritonPythonModel:\n    def", "invalid syntax"},
		"no class":       {"x = 1\n", "TritonPythonModel"},
		"an exit":        {"import os\nos._exit(7)\n", "it ended with exit status 7"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tt.code, options{config: numbers()})
			if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want load_failed with %q", err, tt.want)
			}
		})
	}
}

func TestInterpretersThatCannotRunStubs(t *testing.T) {
	interpreter(t)
	fake := func(prints string) string {
		file := filepath.Join(t.TempDir(), "bin", "python")
		write(t, file, "#!/bin/sh\necho "+prints+"\nexit 1\n")
		if err := os.Chmod(file, 0o700); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
		return file
	}
	const needs = "has to be Python 3.8 or newer with numpy: "
	for name, tt := range map[string]struct{ file, want string }{
		"is not there": {"/nowhere/python", "finds no interpreter"},
		"is none":      {"/bin/false", needs + "install numpy there (/bin/false -m pip install numpy), or name another by --backend-config=python,python-path=FILE: exit status 1"},
		"is old":       {fake("Python 3.7 is too old"), needs + "name another by --backend-config=python,python-path=FILE: Python 3.7 is too old"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, addSub, options{config: numbers(), settings: map[string]string{"python-path": tt.file}})
			if errs.Of(err) != errs.LibraryMissing || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "python-path=FILE") {
				t.Errorf("%v, want library_missing with %q", err, tt.want)
			}
		})
	}
	c := numbers()
	c.Parameters = map[string]string{"EXECUTION_ENV_PATH": filepath.Dir(filepath.Dir(fake("No module named numpy")))}
	if _, err := load(t, addSub, options{config: c}); errs.Of(err) != errs.LibraryMissing || !strings.Contains(err.Error(), "or name another by EXECUTION_ENV_PATH: No module") {
		t.Errorf("of a model's own environment: %v", err)
	}
}

func TestSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		given map[string]string
		want  errs.Reason
	}{
		"no timeout":          {map[string]string{"stub-timeout-seconds": "0"}, errs.ConfigInvalid},
		"one that is not":     {map[string]string{"shm-size": "1"}, errs.ConfigInvalid},
		"memory that is none": {map[string]string{"stub-memory-bytes": "1GB"}, errs.ConfigInvalid},
		"half a processor":    {map[string]string{"stub-cpus": "0.5"}, errs.ConfigInvalid},
		"those without sense": {map[string]string{"shm-default-byte-size": "1", "shm_message_queue_size": "9", "stub-timeout-seconds": "5"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := load(t, addSub, options{config: numbers(), settings: tt.given})
			if errs.Of(err) != tt.want {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if err == nil && strings.Count(w.logged(), "has no meaning here") != 2 {
				t.Error("it is not said that settings have no meaning")
			}
		})
	}
}

func TestFinalizeIsCalled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "finalized")
	w := run(t, imports+fmt.Sprintf(`
class TritonPythonModel:
    def execute(self, requests):
        return [give(SUM=value(r, "A")) for r in requests]
    def finalize(self):
        open(%q, "w").close()
`, file), options{config: numbers()})
	w.infer(ask(floats("A", 1))).Release()
	if err := w.executor.Close(t.Context(), w.id); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestShapesAsTheModelHasThem(t *testing.T) {
	c := numbers()
	c.MaxBatchSize = 4
	for _, list := range [][]modelconfig.IO{c.Inputs, c.Outputs} {
		list[0].Dims, list[0].HasReshape, list[0].Reshape = tensor.Shape{1, -1}, true, tensor.Shape{-1, 1, 1}
	}
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        return [give(SUM=value(r, "A"), DIFFERENCE=np.array(value(r, "A").shape, np.float32)) for r in requests]
`, options{config: c})
	a := floats("A", 1, 2, 3, 4, 5, 6)
	a.Shape = tensor.Shape{2, 1, 3}
	if got := w.show(w.infer(ask(a))); got != "SUM[2,1,3]=1,2,3,4,5,6 DIFFERENCE[4]=2,3,1,1" {
		t.Error(got)
	}
}

func TestModelsCompleteTheirConfigurations(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        if os.path.exists(os.path.join(pb.get_model_dir(), "bad")):
            return None
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        return config
    def execute(self, requests):
        return []
`, options{config: numbers()})
	completer := w.backend.(backend.Completer)
	got, err := completer.Complete(t.Context(), w.version)
	if err != nil || !strings.Contains(string(got), `"IN"`) {
		t.Errorf("%s, %v", got, err)
	}
	write(t, filepath.Join(w.version.Dir, "bad"), "")
	_, err = completer.Complete(t.Context(), w.version)
	if errs.Of(err) != errs.LoadFailed || !strings.Contains(err.Error(), "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object.") {
		t.Errorf("%v", err)
	}
}

func TestModelsCallModels(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        out = []
        for r in requests:
            call = lambda model: pb.InferenceRequest(model_name=model, requested_output_names=["Y"], inputs=[pb.Tensor("X", value(r, "A"))])
            one = call("echo").exec()
            many = [y for y in call("echo").exec(decoupled=True) if len(y.output_tensors()) > 0]
            none = call("nosuch").exec()
            sums = [pb.get_output_tensor_by_name(y, "Y").as_numpy() for y in [one] + many]
            out.append(give(SUM=sum(sums), DIFFERENCE=np.array([len(many), int(none.error().code() == pb.TritonError.NOT_FOUND)], np.float32)))
        return out
`, options{config: numbers()})
	if got := w.show(w.infer(ask(floats("A", 1, 2)))); got != "SUM[2]=3,6 DIFFERENCE[2]=2,1" {
		t.Error(got)
	}
	large := make([]float32, 5000)
	large[4999] = 1
	if got := w.show(w.infer(ask(floats("A", large...)))); !strings.Contains(got, ",0,3 DIFFERENCE[2]=2,1") {
		t.Errorf("%.100s", got)
	}
}

func TestModelsControlModels(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        pb.load_model("other", config="{}", files={"file:1/a": b"abc"})
        try:
            pb.unload_model("other")
            refused = 0
        except pb.TritonModelException as error:
            refused = int("it is not there" in str(error))
        return [give(SUM=np.array([refused, pb.is_model_ready("other", "2"), pb.is_model_ready("other")], np.float32)) for r in requests]
`, options{config: numbers()})
	if got := w.show(w.infer(ask(floats("A", 1)))); got != "SUM[3]=1,1,0" || w.loaded != "other {} map[1/a:abc]" {
		t.Error(got, w.loaded)
	}
}
