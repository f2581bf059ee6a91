package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// Bounds of the server's resident memory, in bytes.
const (
	hostileBudget = 256 << 20
	mostResident  = 600 << 20
	mostKept      = 100 << 20 // more than before, when the attacks have been over for a while
)

// TestHostile is make hostile-test: NEREID_HOSTILE says how long the attacks take together, and
// NEREID_HOSTILE_ATTACKS which these are. A name with commas is several at once.
func TestHostile(t *testing.T) {
	inOneProcess(t)
	text := os.Getenv("NEREID_HOSTILE")
	if text == "" {
		t.Skip("takes minutes: run make hostile-test")
	}
	whole, err := time.ParseDuration(text)
	if err != nil || whole <= 0 {
		t.Fatalf("NEREID_HOSTILE is %q: want a duration", text)
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("load average before: %s", load)
	names := strings.Fields(os.Getenv("NEREID_HOSTILE_ATTACKS"))
	if len(names) == 0 {
		names = append(attackNames(), strings.Join(attackNames(), ","))
	}
	attackEach(t, whole/time.Duration(len(names)), names)
}

// rest is how long after the attacks the memory is measured again.
const rest = time.Minute

// attackEach runs attacks for so long, one after another, beside an honest client.
func attackEach(t *testing.T, each time.Duration, names []string) {
	bytes := `backend: "echo" input [{ name: "x" data_type: TYPE_UINT8 dims: [-1] }] output [{ name: "y" data_type: TYPE_UINT8 dims: [-1] }]`
	s := start(t, repository(t, map[string]string{
		"honest/config.pbtxt": echo(5000), "honest/1/.keep": "",
		"bytes/config.pbtxt": bytes, "bytes/1/.keep": "",
		"texts/config.pbtxt": strings.ReplaceAll(bytes, "UINT8", "STRING"), "texts/1/.keep": "",
		"reals/config.pbtxt": strings.ReplaceAll(bytes, "UINT8", "FP64"), "reals/1/.keep": "",
	}), "--max-request-bytes="+strconv.Itoa(hostileBudget), "--stall-timeout-secs=5", "--log-warning=false")
	s.infer(t, "honest", http.StatusOK)
	before := s.resident()
	table := fmt.Sprintf("%-24s %12s %10s %9s %9s %9s\n", "attack", "resident MiB", "in time %", "p50 ms", "p99 ms", "requests")
	var all timings
	for _, name := range names {
		s.forgetPeak(t)
		ctx, stop := context.WithTimeout(t.Context(), each)
		var honest timings
		var running sync.WaitGroup
		running.Go(func() { honest = s.honest(ctx, t) })
		s.attack(ctx, t, name)
		running.Wait()
		stop()
		s.infer(t, "honest", http.StatusOK)
		peak := peakMemory(t, s.process.command.Process.Pid)
		if strings.Contains(name, ",") {
			name = "all at once"
		}
		if peak > mostResident {
			t.Errorf("%s: %d MiB are resident, want at most %d", name, peak>>20, mostResident>>20)
		}
		table += fmt.Sprintf("%-24s %12d %s\n", name, peak>>20, honest)
		all = append(all, honest...)
	}
	table += fmt.Sprintf("%-24s %12s %s\n", "together", "", all)
	<-time.After(rest)
	after := s.resident()
	t.Logf("\n%sresident before %d MiB, %v after %d MiB", table, before>>20, rest, after>>20)
	if after-before > mostKept {
		t.Errorf("%d MiB more are resident than before", (after-before)>>20)
	}
	if in := all.inTime(); in < 0.99 {
		t.Errorf("%.2f %% of the honest client's requests were served in time, want 99", 100*in)
	}
}

// attack runs a process with the attacks until ctx is done.
func (s *server) attack(ctx context.Context, t *testing.T, names string) {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestHostileAttacker$", "-test.v")
	c.Env = append(os.Environ(), "NEREID_ATTACKS="+names, "NEREID_ATTACKED_HTTP="+s.HTTP, "NEREID_ATTACKED_GRPC="+s.GRPC, "GOMAXPROCS=1", "GOMEMLIMIT=1GiB")
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("the attacks %s ended by themselves: %v\n%s", names, err, out.String())
	case <-ctx.Done():
		_ = c.Process.Kill()
		<-ended
	}
}

// TestHostileAttacker is the process of attackers, on one core.
func TestHostileAttacker(t *testing.T) {
	names := os.Getenv("NEREID_ATTACKS")
	if names == "" {
		t.Skip("part of another test")
	}
	pinToOneCore(t)
	target := target{http: os.Getenv("NEREID_ATTACKED_HTTP"), grpc: os.Getenv("NEREID_ATTACKED_GRPC")}
	var running sync.WaitGroup
	for _, name := range strings.Split(names, ",") {
		attack := attacks()[name]
		for i := range attack.clients {
			running.Go(func() {
				for t.Context().Err() == nil { // the parent kills the process
					attack.do(target, i)
				}
			})
		}
	}
	running.Wait()
}

// pinToOneCore binds all threads of the process to the last core.
func pinToOneCore(t *testing.T) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	var may, last unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(may) * 8 {
		if may.IsSet(i) {
			last.Zero()
			last.Set(i)
		}
	}
	for _, task := range tasks { // threads that start later inherit it
		id, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.SchedSetaffinity(id, &last); err != nil {
			t.Fatal(err)
		}
	}
}

// forgetPeak has the kernel measure the peak of the server's memory from now on.
func (s *server) forgetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.process.command.Process.Pid), []byte("5"), 0o200); err != nil {
		t.Fatal(err)
	}
}

// timings has how long each request of the honest client took; 0 for one that failed.
type timings []time.Duration

const honestDeadline = 100 * time.Millisecond

func (l timings) inTime() float64 {
	n := 0
	for _, took := range l {
		if took > 0 && took <= honestDeadline {
			n++
		}
	}
	return float64(n) / float64(max(len(l), 1))
}

// String is a part of the table's row. Failed requests count as slower than all others.
func (l timings) String() string {
	if len(l) == 0 {
		return ""
	}
	sorted := slices.Clone(l)
	for i := range sorted {
		if sorted[i] == 0 {
			sorted[i] = time.Hour
		}
	}
	slices.Sort(sorted)
	at := func(percent int) string {
		if d := sorted[(len(sorted)-1)*percent/100]; d < time.Hour {
			return fmt.Sprintf("%.1f", float64(d)/1e6)
		}
		return "failed"
	}
	return fmt.Sprintf("%10.2f %9s %9s %9d", 100*l.inTime(), at(50), at(99), len(l))
}

// honest sends 50 requests a second, over HTTP and gRPC by turns, until ctx is done. Their times
// count from when they were due.
func (s *server) honest(ctx context.Context, t *testing.T) (all timings) {
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
		return nil
	}
	defer conn.Close()
	overGRPC := inference.NewGRPCInferenceServiceClient(conn)
	overHTTP := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer overHTTP.CloseIdleConnections()
	request := &inference.ModelInferRequest{
		ModelName:        "honest",
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{1, 1}}},
		RawInputContents: [][]byte{{7, 0, 0, 0}},
	}
	var mu sync.Mutex
	failures := map[string]int{}
	defer func() { t.Log("what has failed:", failures) }()
	var running sync.WaitGroup
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	for i := rand.IntN(2); ; i++ {
		var due time.Time
		select {
		case due = <-ticks.C:
		case <-ctx.Done():
			running.Wait()
			return all
		}
		running.Go(func() {
			deadline, cancel := context.WithDeadline(context.WithoutCancel(ctx), due.Add(honestDeadline))
			defer cancel()
			var err error
			if i%2 == 0 {
				_, err = overGRPC.ModelInfer(deadline, request)
			} else {
				err = callOnce(deadline, overHTTP, s.HTTP)
			}
			took := max(time.Since(due), 1)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				took = 0
				failures[err.Error()]++
			}
			all = append(all, took)
		})
	}
}

func callOnce(ctx context.Context, client *http.Client, address string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/honest/infer", strings.NewReader(one))
	if err != nil {
		return err
	}
	w, err := client.Do(r)
	if err != nil {
		return err
	}
	defer w.Body.Close()
	if w.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", w.StatusCode)
	}
	return nil
}
