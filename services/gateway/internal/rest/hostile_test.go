package rest_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// A body in many chunks of a byte takes no more than its bytes, whatever the endpoint.
func TestBodiesOfManyChunksAreRead(t *testing.T) {
	const chunks = 500_000
	for path, want := range map[string]int{"/v2/models/echo/infer": http.StatusInternalServerError /* as Triton */, "/v2/repository/index": http.StatusRequestEntityTooLarge} {
		budget, with := budgetOf(8 << 20)
		s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)}, with)
		web := httptest.NewServer(s)
		c, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			w := bufio.NewWriterSize(c, 1<<20)
			fmt.Fprintf(w, "POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n", path)
			for range chunks {
				_, _ = w.WriteString("1\r\n \r\n") // blanks before JSON
			}
			_, _ = w.WriteString("1\r\n{\r\n0\r\n\r\n")
			_ = w.Flush()
		}()
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body := readAll(t, r.Body); r.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, r.StatusCode, body, want)
		}
		_ = c.Close()
		web.Close()
		if budget.Reserved() != 0 {
			t.Errorf("%s: %d bytes are charged", path, budget.Reserved())
		}
		s.checkMemory(t)
	}
}

// No client names a file that the server writes.
func TestClientsChooseNoLogOrTraceFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "chosen")
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)})
	for path, body := range map[string]string{
		"/v2/logging":                     `{"log_file":"` + file + `","log_info":true}`,
		"/v2/trace/setting":               `{"trace_file":"` + file + `","trace_level":["TIMESTAMPS"],"trace_rate":"1"}`,
		"/v2/models/echo/trace/setting":   `{"trace_file":"` + file + `","trace_level":["TIMESTAMPS"],"trace_rate":"1"}`,
		"/v2/models/..%2f..%2fecho/infer": bytesIn(1).body,
	} {
		if got := s.do(request{path: path, body: body}); got.Status < 400 || got.Status == 500 {
			t.Errorf("%s: %d %s", path, got.Status, got.Body)
		}
	}
	s.do(bytesIn(1))
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file that a client chose is there: %v", err)
	}
}

// Only the models of the server are inferred or configured by the paths of requests.
func TestPathsOfModelsLeadNowhereElse(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.Uint8, -1)})
	for _, name := range []string{"..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "echo%2f..%2fecho", "echo%00", strings.Repeat("x", 10_000)} {
		for _, rest := range []string{"", "/config", "/stats", "/versions/1", "/versions/..%2f1"} {
			got := s.do(request{method: http.MethodGet, path: "/v2/models/" + name + rest})
			if got.Status < 400 || got.Status >= 500 || strings.Contains(got.Body, "root:") {
				t.Errorf("%.50s%s: %d %.200s", name, rest, got.Status, got.Body)
			}
		}
	}
}
