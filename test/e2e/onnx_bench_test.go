package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// BenchmarkStartWithModels starts the program on a repository of small models
// and stops it: seconds until all of them are ready, and resident memory in
// all. What a model takes of both is the difference between two sizes.
func BenchmarkStartWithModels(b *testing.B) {
	model := string(onnxmodel.AddSub(tensor.Int32, "batch", 16).Bytes())
	for _, n := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			files := make(map[string]string, n)
			for i := range n {
				files[fmt.Sprintf("add_sub_%d/1/model.onnx", i)] = model
			}
			dir := repository(b, files)
			var resident int64
			for b.Loop() {
				begin := time.Now()
				s := start(b, dir)
				b.ReportMetric(time.Since(begin).Seconds()*1000, "ms")
				resident = s.resident()
				s.kill()
			}
			b.ReportMetric(float64(resident)/(1<<20), "MiB")
		})
	}
}

// resident is the process's resident memory in bytes.
func (s *server) resident() int64 { return residentOf(s.t, s.models.command.Process.Pid) }

// residentOf is the memory of a process that is resident, in bytes.
func residentOf(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
