package rest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// occupy takes all turns to code large bodies, until the function that it returns is called.
func occupy(t *testing.T, b *memory.Budget) (release func()) {
	t.Helper()
	accounts := make([]memory.Account, max(runtime.GOMAXPROCS(0)/2, 1))
	for i := range accounts {
		accounts[i].Open(b)
		if err := accounts[i].StartCoding(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for i := range accounts {
			accounts[i].EndCoding()
		}
	}
}

func zippedBody(t *testing.T, body string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Bodies that take a processor for long, and such responses, wait for each other, so that small
// requests do not wait for them.
func TestLargeBodiesWaitForTheirTurn(t *testing.T) {
	const n = 512 << 10
	head := `{"inputs":[{"name":"IN","datatype":"UINT8","shape":[524288],"parameters":{"binary_data_size":524288}}]}`
	json := `{"inputs":[{"name":"IN","datatype":"UINT8","shape":[524288],"data":[1` + strings.Repeat(",1", n-1) + `]}],"outputs":[{"name":"OUT","parameters":{"binary_data":true}}]}`
	raw := strings.Repeat("\x01", n)
	for name, c := range map[string]struct {
		header map[string]string
		body   string
	}{
		"JSON":                     {nil, json},
		"gzip of JSON":             {map[string]string{"Content-Encoding": "gzip"}, zippedBody(t, json)},
		"gzip of a tensor":         {map[string]string{"Content-Encoding": "gzip", "Inference-Header-Content-Length": "0"}, zippedBody(t, raw)},
		"a tensor, gzip in return": {map[string]string{"Accept-Encoding": "gzip", "Inference-Header-Content-Length": "0"}, raw},
		"a tensor, JSON in return": {map[string]string{"Inference-Header-Content-Length": strconv.Itoa(len(head))}, head + raw},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				budget := memory.NewBudget(64 << 20)
				s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, func(o *rest.Options) { o.Budget = budget })
				free := occupy(t, budget)
				call := func(ctx context.Context) *httptest.ResponseRecorder {
					r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v2/models/echo/infer", strings.NewReader(c.body))
					for k, v := range c.header {
						r.Header.Set(k, v)
					}
					w := httptest.NewRecorder()
					s.ServeHTTP(w, r)
					return w
				}
				patient, hasty := make(chan int, 1), make(chan int, 1)
				go func() { patient <- call(t.Context()).Code }()
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					hasty <- call(ctx).Code
				}()
				synctest.Wait()
				small := request{path: "/v2/models/echo/infer", body: `{"inputs":[{"name":"IN","datatype":"UINT8","shape":[1],"data":[1]}]}`}
				if got := s.do(small).Status; got != http.StatusOK {
					t.Errorf("a small request: %d", got)
				}
				if len(patient)+len(hasty) > 0 {
					t.Fatal("a large one did not wait")
				}
				if got := <-hasty; got != http.StatusGatewayTimeout {
					t.Errorf("one whose deadline passed: %d", got)
				}
				free()
				if got := <-patient; got != http.StatusOK {
					t.Errorf("one that had its turn: %d", got)
				}
				occupy(t, budget)() // all turns are given back
				if n := budget.Reserved(); n != 0 {
					t.Errorf("%d bytes are charged at the end", n)
				}
				s.checkMemory(t)
			})
		})
	}
}

// A client that is slow to send a compressed body has no turn meanwhile.
func TestASlowBodyHoldsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := memory.NewBudget(64 << 20)
		s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, func(o *rest.Options) { o.Budget = budget })
		body := zippedBody(t, strings.Repeat("\x01", 16<<20))
		slow, client := io.Pipe()
		send := func(part string) {
			if _, err := io.WriteString(client, part); err != nil {
				t.Error(err)
			}
		}
		ended := make(chan int, 1)
		go func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v2/models/echo/infer", slow)
			r.Header.Set("Content-Encoding", "gzip")
			r.Header.Set("Inference-Header-Content-Length", "0")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			ended <- w.Code
		}()
		send(body[:len(body)-8])
		synctest.Wait()
		occupy(t, budget)() // waits for a turn
		send(body[len(body)-8:])
		_ = client.Close()
		if got := <-ended; got != http.StatusOK {
			t.Errorf("the slow client: %d", got)
		}
	})
}
