package rest_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestRequestCarriesWhatTheClientSaid(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	var got infer.Request
	s.scheduler.submit = func(q *infer.Request) error { got = *q; return nil }
	s.do(request{
		path: "/v2/models/simple/infer",
		body: pair(`"id":"x","parameters":{"sequence_id":5,"priority":2,"timeout":7,"k":true},"outputs":[{"name":"OUTPUT1"}],`),
		header: map[string]string{
			"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Request-Timeout": "1500ms",
		},
	})
	if left := got.Deadline.Sub(got.Received); left != 1500*time.Millisecond {
		t.Errorf("the deadline is %v after the request came", left)
	}
	got.Inputs, got.Deadline, got.Received = nil, 0, 0
	want := infer.Request{
		Work:       infer.Work{Request: infer.RequestID{Origin: 7, Number: 1}, Attempt: 1, Revision: 3},
		ID:         "x",
		Model:      infer.ModelRef{Name: "simple", Version: 1},
		AnyVersion: true,
		BatchSize:  1,
		Outputs:    []infer.Output{{Name: "OUTPUT1"}},
		Parameters: []infer.Parameter{{Key: "k", Value: true}},
		Sequence:   infer.Sequence{ID: 5},
		Priority:   2,
		Timeout:    7 * time.Microsecond,
		Trace:      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestTheLongestDeadlineLiesInTheFuture(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	var got infer.Request
	s.scheduler.submit = func(q *infer.Request) error { got = *q; return nil }
	s.do(request{path: "/v2/models/simple/infer", body: pair(""), header: map[string]string{"X-Request-Timeout": "2562047h"}})
	if got.Deadline < got.Received.Add(24*time.Hour) {
		t.Errorf("received at %d with the deadline %d", got.Received, got.Deadline)
	}
}

func TestClientsDeadlineEndsTheWait(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	s.scheduler.execute = nil // never responds
	var canceled []infer.RequestID
	s.scheduler.cancel = func(id infer.RequestID) { canceled = append(canceled, id) }
	want := inferRefusal(504, "the deadline passed before the answer was there", "deadline_compute")
	got := s.doLike(request{path: "/v2/models/simple/infer", body: pair(""), header: map[string]string{"X-Request-Timeout": "0.001"}}, want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]infer.RequestID{{Origin: 7, Number: 1}}, canceled); d != "" {
		t.Error(d)
	}
}

func TestClientThatGoesAwayCancels(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	submitted, canceled := make(chan struct{}), make(chan infer.RequestID, 1)
	s.scheduler.execute = nil
	s.scheduler.submit = func(*infer.Request) error { close(submitted); return nil }
	s.scheduler.cancel = func(id infer.RequestID) { canceled <- id }
	web := httptest.NewServer(s)
	defer web.Close()
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-submitted; leave() }()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, web.URL+"/v2/models/simple/infer", strings.NewReader(pair("")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := web.Client().Do(r); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if id := <-canceled; id.Number != 1 {
		t.Errorf("canceled %v", id)
	}
}
