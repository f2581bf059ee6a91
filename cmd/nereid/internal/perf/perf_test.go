package perf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestArrivalsHaveTheirRate(t *testing.T) {
	t.Parallel()
	const rate, seconds = 500.0, 200
	for _, arrivals := range []Arrivals{Constant, Poisson, Bursty, Ramp} {
		n, last := 0, time.Duration(0)
		for at := range (Load{Rate: rate, Arrivals: arrivals}).offsets(seconds*time.Second, rand.New(rand.NewPCG(1, 1))) {
			if at < last {
				t.Fatalf("%s: %v comes after %v", arrivals, at, last)
			}
			n, last = n+1, at
		}
		if got := float64(n) / seconds; math.Abs(got/rate-1) > 0.05 {
			t.Errorf("%s: %.1f requests per second, want %v", arrivals, got, rate)
		}
	}
}

// TestIntervalsCoverTheTruth draws dependent latencies and holds the intervals of
// their mean and quantiles against the known distribution.
func TestIntervalsCoverTheTruth(t *testing.T) {
	t.Parallel()
	const repeats = 200
	covered := map[string]int{}
	for seed := range uint64(repeats) {
		rng := rand.New(rand.NewPCG(seed, 9))
		var s spread
		for batch := range batches {
			for range 200 {
				s.add(batch, time.Duration(1000+rng.ExpFloat64()*1000)*time.Microsecond)
			}
		}
		for name, check := range map[string]struct {
			got  Interval
			want float64
		}{
			"mean": {s.mean(), 2000},
			"p50":  {s.quantile(0.5), 1000 + 1000*math.Ln2},
			"p99":  {s.quantile(0.99), 1000 + 1000*math.Log(100)},
		} {
			if check.got.Low <= check.want*1.001 && check.want*0.999 <= check.got.High {
				covered[name]++
			}
		}
	}
	for name, n := range covered {
		if n < repeats*90/100 {
			t.Errorf("%d of %d intervals of %s have the truth, want about 95 %%", n, repeats, name)
		}
	}
	if len(covered) != 3 {
		t.Errorf("intervals cover nothing: %v", covered)
	}
}

func TestQuantileBeyondTheDataHasNoBounds(t *testing.T) {
	t.Parallel()
	var s spread
	for batch := range batches {
		s.add(batch, time.Duration(batch)*time.Millisecond)
	}
	if i := s.quantile(0.999); i.known() {
		t.Errorf("32 latencies bound their 99.9 %% quantile: %v", i)
	}
}

func TestStudentQuantiles(t *testing.T) {
	t.Parallel()
	for freedom, want := range map[int]float64{1: 12.706, 4: 2.776, 10: 2.228, 31: 2.040, 1000: 1.962} {
		if got := student(freedom); math.Abs(got-want) > 0.005 {
			t.Errorf("student(%d) is %.4f, want %.3f", freedom, got, want)
		}
	}
}

func described() *client.Metadata {
	return &client.Metadata{Inputs: []client.Description{
		{Name: "A", Datatype: tensor.Int32, Shape: tensor.Shape{-1, 2}},
		{Name: "T", Datatype: tensor.Bytes, Shape: tensor.Shape{-1, 1}},
	}}
}

func TestReadData(t *testing.T) {
	t.Parallel()
	const text = `{"data": [
		{"A": [1, 2], "T": ["x"]},
		{"A": {"content": [3, 4], "shape": [2]}, "T": {"b64": "aGk="}},
		[{"A": {"b64": "AQAAAAIAAAA="}}, {"A": [7, 8]}]
	]}`
	items, err := ReadData([]byte(text), described(), 1)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, element := range items {
		for _, item := range element {
			for _, in := range item.Inputs {
				got = append(got, fmt.Sprintf("%s%v%x", in.Name, in.Shape, in.Data))
			}
		}
		got = append(got, "/")
	}
	want := []string{
		"A[1,2]0100000002000000", "T[1,1]0100000078", "/",
		"A[1,2]0300000004000000", "T[1,1]020000006869", "/",
		"A[1,2]0100000002000000", "A[1,2]0700000008000000", "/",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReadDataJoinsRows(t *testing.T) {
	t.Parallel()
	items, err := ReadData([]byte(`{"data": [{"A": [1, 2]}, {"A": [3, 4]}]}`), described(), 2)
	if err != nil {
		t.Fatal(err)
	}
	first, second := items[0][0].Inputs[0], items[1][0].Inputs[0]
	if got := fmt.Sprintf("%v%x %v%x", first.Shape, first.Data, second.Shape, second.Data); got != "[2,2]01000000020000000300000004000000 [2,2]03000000040000000100000002000000" {
		t.Error(got)
	}
}

func TestReadDataRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[]`:                                 "no JSON",
		`{"data": []}`:                       "no requests",
		`{"data": [7]}`:                      "object of inputs",
		`{"data": [{"B": [1]}]}`:             `no input "B"`,
		`{"data": [{"A": [1.5]}]}`:           "1.5",
		`{"data": [{"A": [1,2,3]}]}`:         "shape",
		`{"data": [{"A": {"b64": "!"}}]}`:    "base64",
		`{"data": [{"A": {"b64": "AQ=="}}]}`: "1 bytes",
		`{"data": [{"A": {"b64": "", "shape": [4611686018427387904, 8]}}]}`: "bytes",
	} {
		if _, err := ReadData([]byte(text), described(), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q in it", text, err, want)
		}
	}
}

func FuzzReadData(f *testing.F) {
	f.Add([]byte(`{"data": [{"A": [1, 2], "T": ["x"]}, [{"A": {"content": [1], "shape": [1]}}]]}`), 2)
	f.Fuzz(func(t *testing.T, text []byte, rows int) {
		items, err := ReadData(text, described(), min(max(rows, 1), 8))
		if err == nil && len(items) == 0 {
			t.Error("there are neither requests nor an error")
		}
	})
}

func TestGates(t *testing.T) {
	t.Parallel()
	m := &Measurement{All: Group{Answered: 990, Failed: 10, Rate: Interval{Value: 100}, Latency: Latency{P99: Interval{Value: 25_000}}}}
	for text, want := range map[string]bool{"p99>20ms": true, "p99>30ms": false, "p99 < 30ms": true, "rate<500": true, "rate<50": false, "errors>0.1%": true, "errors>0.02": false} {
		g, err := ParseGate(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if g.Broken(m) != want {
			t.Errorf("%s is broken: %v, want %v", text, !want, want)
		}
	}
	for _, text := range []string{"p99", "p98>1ms", "p99>x", "errors>200%", "rate>"} {
		if _, err := ParseGate(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if g, _ := ParseGate("p99>20ms"); !g.Broken(&Measurement{All: Group{Latency: Latency{P99: Interval{Value: math.NaN()}}}}) {
		t.Error("a run without a response passes a bound of its latency")
	}
}

// answer is a server whose requests take no time. Every tenth fails.
func answer(requests *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || n != r.ContentLength || r.URL.Path != "/v2/models/m/infer" {
			w.WriteHeader(http.StatusBadRequest)
		}
		if requests.Add(1)%10 == 0 {
			w.Header().Set("Nereid-Reason", "queue_full")
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, `{"error":"full"}`)
			return
		}
		io.WriteString(w, `{}`)
	}
}

func bench(t *testing.T, address string, length time.Duration) *Bench {
	t.Helper()
	items := [][]Item{{{Inputs: []client.Tensor{{Description: client.Description{Name: "A", Datatype: tensor.Int32, Shape: tensor.Shape{1, 1}}, Data: []byte{1, 0, 0, 0}}}}}}
	b, err := New(Target{Protocol: HTTP, Address: address}, []Class{{Model: "m", Caller: "x", Share: 1, Items: items}}, Options{Length: length})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// TestRunCountsEveryRequest holds what a run reports against what the server saw.
func TestRunCountsEveryRequest(t *testing.T) {
	t.Parallel()
	for _, load := range []Load{{Concurrency: 3}, {Rate: 300, Arrivals: Poisson}} {
		var requests atomic.Int64
		server := httptest.NewServer(answer(&requests))
		m, err := bench(t, server.Listener.Addr().String(), 500*time.Millisecond).Run(t.Context(), load)
		server.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got := m.All.Answered + m.All.Failed; got != requests.Load() || got == 0 {
			t.Errorf("%s: %d requests are reported and the server saw %d", load, got, requests.Load())
		}
		if got := m.All.Errors["queue_full"]; got != requests.Load()/10 || m.All.Examples["queue_full"] != "full" {
			t.Errorf("%s: errors are %v %v, and every tenth of %d requests failed", load, m.All.Errors, m.All.Examples, requests.Load())
		}
	}
}

// TestRunSurvivesConnectionsThatEnd has a server that closes each connection after
// its response without saying so.
func TestRunSurvivesConnectionsThatEnd(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 4096)
			if _, err := c.Read(buffer); err == nil {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			}
			c.Close()
		}
	}()
	m, err := bench(t, listener.Addr().String(), 300*time.Millisecond).Run(t.Context(), Load{Concurrency: 2})
	if err != nil {
		t.Fatal(err)
	}
	if m.All.Answered == 0 || m.All.Failed > 0 {
		t.Errorf("%d requests are answered and %d failed: %v", m.All.Answered, m.All.Failed, m.All.Examples)
	}
}

func TestRunReportsAServerThatIsGone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	address := server.Listener.Addr().String()
	server.Close()
	m, err := bench(t, address, 100*time.Millisecond).Run(t.Context(), Load{Rate: 100, Arrivals: Constant})
	if err != nil {
		t.Fatal(err)
	}
	if m.All.Answered > 0 || m.All.Errors["connect"] == 0 {
		t.Errorf("a server that is gone answered %d requests: %v", m.All.Answered, m.All.Errors)
	}
}

// TestReportsAreRead has a report survive JSON, and appear in every other form.
func TestReportsAreRead(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	server := httptest.NewServer(answer(&requests))
	defer server.Close()
	b := bench(t, server.Listener.Addr().String(), 200*time.Millisecond)
	r := &Report{Command: "nereid perf m", Target: "<m>"}
	for _, n := range []int{1, 2} {
		m, err := b.Run(t.Context(), Load{Concurrency: n})
		if err != nil {
			t.Fatal(err)
		}
		r.Runs = append(r.Runs, m)
	}
	var text, again bytes.Buffer
	if err := r.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	read, err := ReadReport(bytes.NewReader(text.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := read.WriteJSON(&again); err != nil || !bytes.Equal(text.Bytes(), again.Bytes()) {
		t.Errorf("a report changes when it is read (%v):\n%s", err, cmp.Diff(text.String(), again.String()))
	}
	var page, table, columns, differences bytes.Buffer
	for _, write := range []func() error{
		func() error { return r.WriteHTML(&page) }, func() error { return r.Print(&table) }, func() error { return r.WriteCSV(&columns) },
		func() error { return PrintDifferences(&differences, read, r) },
	} {
		if err := write(); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string][2]string{
		"page": {page.String(), "&lt;m&gt;"}, "table": {table.String(), "2 at a time"},
		"csv": {columns.String(), "Concurrency,Inferences/Second,"}, "differences": {differences.String(), "within the noise"},
	} {
		if !strings.Contains(want[0], want[1]) {
			t.Errorf("the %s lacks %q:\n%s", name, want[1], want[0])
		}
	}
	if strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "ZgotmplZ") || strings.Contains(page.String(), "<script") {
		t.Error("the page has a NaN, a script or something that the template refused")
	}
}

func TestIntervalsInJSON(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Interval{1, math.NaN(), math.Inf(1)})
	if err != nil || string(text) != `{"value":1}` {
		t.Errorf("an interval without bounds is %s (%v)", text, err)
	}
}
