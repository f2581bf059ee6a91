package python_test

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// mappedBytes is how much of the memory of a process is shared between worker and stub.
func mappedBytes(t *testing.T, maps string) (n int64) {
	t.Helper()
	for line := range strings.Lines(maps) {
		if !strings.Contains(line, "memfd:nereid-") {
			continue
		}
		var from, to int64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			t.Fatal(err)
		}
		n += to - from
	}
	return n
}

// Memory that models share with the worker has no name by which a client could register it as a region
// of its own.
func TestSharedMemoryHasNoName(t *testing.T) {
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        x = value(requests[0], "A")
        shared = [line for line in open("/proc/self/maps") if "memfd:nereid-" in line]
        named = [n for n in os.listdir("/dev/shm") if "nereid" in n or "triton" in n]
        return [give(SUM=np.array([len(shared) > 0, len(named)], np.float32), DIFFERENCE=x)]
`, options{config: numbers()})
	large := make([]float32, 1<<20)
	for range 3 { // the worker maps the model's memory with its first outputs
		r := w.infer(ask(floats("A", large...), floats("B", 1)))
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		r.Release()
	}
	r := w.infer(ask(floats("A", 1), floats("B", 1)))
	if got := w.show(r); !strings.HasPrefix(got, "SUM[2]=1,0 ") {
		t.Errorf("shared, and with names: %s", got)
	}
}

// TestSharedMemoryIsBounded has a model give back many tensors of growing sizes, and
// looks at what both processes have mapped once all was given up.
func TestSharedMemoryIsBounded(t *testing.T) {
	const (
		batches = 1000
		tensors = 16
		largest = 4 << 20
		kept    = 64 << 20 // of each direction, as the design says
	)
	config := numbers()
	config.Inputs, config.Outputs = nil, io(tensor.FP32, "BYTES")
	for i := range tensors {
		config.Inputs = append(config.Inputs, io(tensor.FP32, "X"+strconv.Itoa(i))...)
		config.Outputs = append(config.Outputs, io(tensor.FP32, "Y"+strconv.Itoa(i))...)
	}
	w := run(t, imports+`
class TritonPythonModel:
    def execute(self, requests):
        outputs = {"Y" + x.name()[1:]: x.as_numpy() for x in requests[0].inputs()}
        if not outputs:
            spans = [line.split()[0].split("-") for line in open("/proc/self/maps") if "memfd:nereid-" in line]
            outputs["BYTES"] = np.array([sum(int(to, 16) - int(begin, 16) for begin, to in spans)], np.float32)
        return [give(**outputs)]
`, options{config: config})
	data := tensor.InHeap(make([]byte, largest))
	largestSum := int64(0)
	for i := range batches {
		// Most are small, and the last are the largest.
		size := int64(4096*math.Pow(largest/4096, math.Pow(float64(i+1)/batches, 8))) / 4 * 4
		r := &infer.Request{}
		for k := range tensors {
			d := data.Retain()
			d.Length = size
			r.Inputs = append(r.Inputs, infer.Tensor{Name: "X" + strconv.Itoa(k), Datatype: tensor.FP32, Shape: tensor.Shape{size / 4}, Data: d})
		}
		response := w.infer(r)
		if response.Err != nil || len(response.Outputs) != tensors || response.Outputs[0].Data.Length != size {
			t.Fatal(response.Err, len(response.Outputs))
		}
		response.Release()
		largestSum = max(largestSum, size*tensors)
	}
	if largestSum < kept {
		t.Fatalf("at most %d bytes were in use at a time, which proves nothing", largestSum)
	}
	stub := int64(0)
	for range 3 { // what is given up goes with what is sent next
		n, err := strconv.ParseFloat(strings.SplitAfter(w.show(w.infer(ask())), "=")[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		stub = int64(n)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if worker := mappedBytes(t, string(maps)); max(worker, stub) > 2*kept+largest {
		t.Errorf("the worker has %d bytes mapped, the stub %d, where %d are kept for each direction", worker, stub, kept)
	}
}
