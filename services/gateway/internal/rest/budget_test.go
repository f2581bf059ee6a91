package rest_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

func budgetOf(limit int64) (*core.Budget, func(*rest.Options)) {
	b := core.NewBudget(limit)
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
	var meanwhile answer
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
	var squeezed bytes.Buffer
	w := gzip.NewWriter(&squeezed)
	_, _ = w.Write([]byte(big.body))
	_ = w.Close()
	big.body, big.header["Content-Encoding"] = squeezed.String(), "gzip"
	if a := s.do(big, "Nereid-Reason"); a.Status != http.StatusServiceUnavailable || a.Header["Nereid-Reason"] != "memory_full" {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if budget.Reserved() != 0 {
		t.Errorf("%d bytes are held", budget.Reserved())
	}
	s.checkMemory(t)
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
