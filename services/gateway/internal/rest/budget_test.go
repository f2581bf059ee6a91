package rest_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func budgetOf(limit int64) (*memory.Budget, func(*rest.Options)) {
	b := memory.NewBudget(limit)
	return b, func(o *rest.Options) { o.Budget = b }
}

// bytesIn is a request of the model echo with n bytes of data.
func bytesIn(n int) request {
	json := fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}],`+
		`"parameters":{"binary_data_output":true}}`, n, n)
	return request{path: "/v2/models/echo/infer", body: json + strings.Repeat("x", n), header: map[string]string{
		"Inference-Header-Content-Length": fmt.Sprint(len(json)),
	}}
}

func TestRequestsBeyondTheBudgetAreRefusedWhileItIsFull(t *testing.T) {
	budget, with := budgetOf(100_000)
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with)
	big := bytesIn(60_000)
	var meanwhile response
	s.scheduler.execute = func(q *infer.Request) *infer.Response {
		s.scheduler.execute = compute
		meanwhile = s.do(big, "Retry-After", "Nereid-Reason")
		return compute(q)
	}
	if a := s.do(big); a.Status != http.StatusOK {
		t.Fatalf("the first: %d %s", a.Status, a.Body)
	}
	if meanwhile.Status != http.StatusServiceUnavailable || meanwhile.Header["Retry-After"] != "1" ||
		meanwhile.Header["Nereid-Reason"] != "memory_full" {
		t.Errorf("beside it: %+v", meanwhile)
	}
	if a := s.do(big); a.Status != http.StatusOK || budget.Reserved() != 0 {
		t.Errorf("after it: %d, %d bytes are held", a.Status, budget.Reserved())
	}
	s.checkMemory(t)
}

// What a body becomes counts as well.
func TestDecompressedBodiesCount(t *testing.T) {
	budget, with := budgetOf(100_000)
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with)
	big := bytesIn(90_000)
	big.body, big.header["Content-Encoding"] = compress(t, "gzip", big.body), "gzip"
	if a := s.do(big, "Nereid-Reason"); a.Status != http.StatusServiceUnavailable || a.Header["Nereid-Reason"] != "memory_full" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if budget.Reserved() != 0 {
		t.Errorf("%d bytes are held", budget.Reserved())
	}
	s.checkMemory(t)
}

// What is copied out of a body of unknown size counts beside the memory that has
// the body, which counts no more once all is copied.
func TestTensorsCountBesideTheBodyOfUnknownSize(t *testing.T) {
	const n = 90_000 // for which 128 KiB are held
	binary := bytesIn(n)
	text := request{path: binary.path, body: fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"UINT8","shape":[%d],"data":[%s1]}],`+
		`"parameters":{"binary_data_output":true}}`, n/2, strings.Repeat("1,", n/2-1)), header: map[string]string{}}
	zipped := func(q request) request {
		q.header = maps.Clone(q.header)
		q.header["Content-Encoding"] = "gzip"
		q.body = compress(t, "gzip", q.body)
		return q
	}
	for name, c := range map[string]struct {
		request
		most, tensor int64 // bytes at a time, and of them the tensor's
		slack        int64 // for the JSON, what is compressed and the names
	}{
		"binary, compressed": {zipped(binary), 128<<10 + n, n, 5000},
		"JSON, compressed":   {zipped(text), 192 << 10, n / 2, 5000}, // where the one is copied into the other
		"JSON":               {text, n + n/2, n / 2, 5000},
	} {
		for limit, want := range map[int64]int{c.most - 1: http.StatusServiceUnavailable, c.most + c.slack: http.StatusOK} {
			budget, with := budgetOf(limit)
			s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with)
			s.scheduler.execute = func(q *infer.Request) *infer.Response {
				if held := budget.Reserved(); held < c.tensor || held > c.tensor+c.slack {
					t.Errorf("%s: %d bytes are held for a tensor of %d", name, held, c.tensor)
				}
				return compute(q)
			}
			if a := s.do(c.request); a.Status != want {
				t.Errorf("%s with a budget of %d: %d %.200s", name, limit, a.Status, a.Body)
			}
			if budget.Reserved() != 0 {
				t.Errorf("%s: %d bytes are held", name, budget.Reserved())
			}
			s.checkMemory(t)
		}
	}
}

func TestBodiesLargerThanTheBudgetNeedNotComeAgain(t *testing.T) {
	_, with := budgetOf(50_000)
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with)
	if a := s.do(bytesIn(60_000)); a.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}

// A connection goes on after a refusal that came in the middle of a body.
func TestConnectionsOutliveTheRefusal(t *testing.T) {
	budget, with := budgetOf(1 << 20)
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with)
	web := httptest.NewServer(s)
	defer web.Close()
	send := func() int {
		q := bytesIn(900_000)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+q.path, strings.NewReader(q.body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range q.header {
			r.Header.Set(k, v)
		}
		w, err := web.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		readAll(t, w.Body)
		return w.StatusCode
	}
	if err := budget.Reserve(500_000); err != nil {
		t.Fatal(err)
	}
	if status := send(); status != http.StatusServiceUnavailable {
		t.Errorf("beside others: %d", status)
	}
	budget.Release(500_000)
	if status := send(); status != http.StatusOK {
		t.Errorf("alone: %d", status)
	}
}

// What a response becomes when it is compressed counts until its client has it.
func TestCompressedResponsesCount(t *testing.T) {
	const n = 4 << 20
	noise := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	for limit, want := range map[int64]int{3 * n: http.StatusOK, 2*n - 1: http.StatusServiceUnavailable} {
		budget, with := budgetOf(limit)
		s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with)
		q := bytesIn(n)
		q.body = q.body[:len(q.body)-n] + string(noise)
		q.header["Accept-Encoding"] = "gzip"
		if a := s.do(q); a.Status != want {
			t.Errorf("with a budget of %d: %d %.100q", limit, a.Status, a.Body)
		}
		if budget.Reserved() != 0 {
			t.Errorf("%d bytes are held", budget.Reserved())
		}
		s.checkMemory(t)
	}
}
