package compose

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// load is clients that each ask one thing after the other, over connections
// of their own.
type load struct {
	url     string
	stop    func()
	stopped chan struct{}
	running sync.WaitGroup
	next    atomic.Int64

	mu     sync.Mutex
	counts map[string]int // guarded by mu; requests by what came of them
	others []string       // guarded by mu; responses that are wrong
}

// What may come of a request beside an error's reason.
const (
	answered = "ok"
	broken   = "connection broken"
)

// load starts clients that ask the model simple until the end of the load, or
// of the test.
func (c *cluster) load(t *testing.T, clients int) *load {
	l := &load{url: "http://" + c.http + "/v2/models/simple/infer", stopped: make(chan struct{}), counts: map[string]int{}}
	l.stop = sync.OnceFunc(func() {
		close(l.stopped)
		l.running.Wait()
	})
	t.Cleanup(l.stop)
	for range clients {
		l.running.Go(l.client)
	}
	return l
}

// end stops the clients and returns how many requests had which end.
func (l *load) end(t *testing.T) map[string]int {
	t.Helper()
	l.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.others) > 0 {
		t.Errorf("%d wrong responses, such as %s", len(l.others), l.others[0])
	}
	t.Logf("requests by their ends: %v", l.counts)
	return l.counts
}

// so returns how many requests have had this end so far.
func (l *load) so(end string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[end]
}

func (l *load) client() {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience}
	for {
		select {
		case <-l.stopped:
			return
		default:
		}
		number := int(l.next.Add(1) % 1_000_000)
		end, err := l.ask(client, number)
		l.mu.Lock()
		l.counts[end]++
		if err != nil {
			l.others = append(l.others, err.Error())
		}
		l.mu.Unlock()
	}
}

type namedTensor struct {
	Name     string `json:"name"`
	Datatype string `json:"datatype"`
	Shape    []int  `json:"shape"`
	Data     []int  `json:"data"`
}

// ask sends one request and holds its response against its inputs: the model
// gives the sum and the difference.
func (l *load) ask(client *http.Client, number int) (string, error) {
	a, b := slices.Repeat([]int{number}, 16), slices.Repeat([]int{1}, 16)
	body, err := json.Marshal(map[string]any{"inputs": []namedTensor{
		{"INPUT0", "INT32", []int{1, 16}, a}, {"INPUT1", "INT32", []int{1, 16}, b},
	}})
	if err != nil {
		return broken, err
	}
	response, err := client.Post(l.url, "application/json", bytes.NewReader(body))
	if err != nil {
		return broken, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return broken, nil
	}
	var content struct {
		Outputs []namedTensor `json:"outputs"`
	}
	if err := json.Unmarshal(text, &content); err != nil {
		return "unreadable", fmt.Errorf("%s: %s", response.Status, text)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d %s", response.StatusCode, response.Header.Get("Nereid-Reason")), nil
	}
	for _, output := range content.Outputs {
		want := number + 1
		if output.Name == "OUTPUT1" {
			want = number - 1
		}
		if !slices.Equal(output.Data, slices.Repeat([]int{want}, 16)) {
			return "wrong", fmt.Errorf("for %d: %s", number, text)
		}
	}
	if len(content.Outputs) != 2 {
		return "wrong", errors.New(string(text))
	}
	return answered, nil
}

// unexpected are the ends that are not among those expected.
func unexpected(counts map[string]int, expected ...string) map[string]int {
	found := map[string]int{}
	for end, n := range counts {
		if !slices.Contains(expected, end) {
			found[end] = n
		}
	}
	return found
}
