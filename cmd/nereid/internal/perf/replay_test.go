package perf

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/recording"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func recorded(t *testing.T, edit func(*nereidv1.RecordedRequest, *inference.ModelInferRequest)) recording.Request {
	t.Helper()
	r := &nereidv1.RecordedRequest{Number: 7, OffsetNs: 5e6, Tenant: "gold", DeadlineNs: 1e9}
	m := &inference.ModelInferRequest{
		ModelName: "m", Id: "i",
		Inputs:           []*inference.ModelInferRequest_InferInputTensor{{Name: "A", Datatype: "INT32", Shape: []int64{1, 2}}},
		RawInputContents: [][]byte{{1, 0, 0, 0, 2, 0, 0, 0}},
		Parameters:       map[string]*inference.InferParameter{"priority": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 2}}},
	}
	edit(r, m)
	var err error
	if r.Request, err = proto.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return recording.Request{RecordedRequest: r}
}

func replayOf(t *testing.T, target Target, list ...recording.Request) (*Bench, error) {
	t.Helper()
	b, err := NewReplay(target, &Trace{
		Recording: &recording.Recording{Requests: list}, Header: http.Header{"X-Usual": {"1"}}, Callers: map[string]http.Header{"gold": {"X-Key": {"g"}}},
	}, Options{Length: time.Second})
	if err == nil {
		t.Cleanup(func() { _ = b.Close() })
	}
	return b, err
}

// A recorded request is sent over HTTP with all that it had, as its tenant, in the order of times.
func TestARecordedRequestIsSentAsItWas(t *testing.T) {
	t.Parallel()
	b, err := replayOf(t, Target{Protocol: HTTP, Address: "host:1"},
		recorded(t, func(*nereidv1.RecordedRequest, *inference.ModelInferRequest) {}),
		recorded(t, func(r *nereidv1.RecordedRequest, m *inference.ModelInferRequest) {
			r.OffsetNs, r.Tenant, r.DeadlineNs, r.Redacted = 1e6, "", 0, true
			m.RawInputContents, m.Id = nil, ""
			m.Inputs = append(m.Inputs, &inference.ModelInferRequest_InferInputTensor{Name: "T", Datatype: "BYTES", Shape: []int64{1, 3}})
		}))
	if err != nil {
		t.Fatal(err)
	}
	first, second := b.replay.requests[0], b.replay.requests[1]
	if first.at != time.Millisecond || second.at != 5*time.Millisecond || b.replay.redacted != 1 || len(b.classes) != 2 {
		t.Errorf("%+v", b.replay)
	}
	head, body, _ := strings.Cut(string(second.payload.http), "\r\n\r\n")
	for _, want := range []string{"POST /v2/models/m/infer HTTP/1.1", "X-Key: g", "X-Request-Timeout: 1s", "Content-Length: "} {
		if !strings.Contains(head, want) {
			t.Errorf("the head lacks %q:\n%s", want, head)
		}
	}
	at := strings.LastIndex(body, "}}") + len("}}")
	tensors := body[at:]
	var got map[string]any
	if err := json.Unmarshal([]byte(body[:at]), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"id":         "i",
		"inputs":     []any{map[string]any{"name": "A", "datatype": "INT32", "shape": []any{1.0, 2.0}, "parameters": map[string]any{"binary_data_size": 8.0}}},
		"parameters": map[string]any{"priority": 2.0, "binary_data_output": true},
	}
	if diff := cmp.Diff(want, got); diff != "" || tensors != "\x01\x00\x00\x00\x02\x00\x00\x00" {
		t.Errorf("%x (-want +got):\n%s", tensors, diff)
	}
	if head, body, _ := strings.Cut(string(first.payload.http), "\r\n\r\n"); !strings.Contains(head, "X-Usual: 1") || strings.Contains(head, "Timeout") ||
		!strings.HasSuffix(body, "}}"+strings.Repeat("\x00", 8+12)) {
		t.Errorf("a request without contents is %q", first.payload.http)
	}
}

// What a file says is checked before it takes memory.
func TestWrongRecordingsAreRefused(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*nereidv1.RecordedRequest, *inference.ModelInferRequest){
		"unknown datatype": func(r *nereidv1.RecordedRequest, m *inference.ModelInferRequest) {
			r.Redacted, m.Inputs[0].Datatype = true, "INT31"
		},
		"too large": func(r *nereidv1.RecordedRequest, m *inference.ModelInferRequest) {
			r.Redacted, m.Inputs[0].Shape = true, []int64{1 << 40}
		},
		"is too large": func(r *nereidv1.RecordedRequest, m *inference.ModelInferRequest) {
			r.Redacted, m.Inputs[0].Shape = true, []int64{1 << 40, 1 << 40}
		},
		"contents of 0": func(_ *nereidv1.RecordedRequest, m *inference.ModelInferRequest) { m.RawInputContents = nil },
	} {
		if _, err := replayOf(t, Target{Protocol: HTTP, Address: "host:1"}, recorded(t, edit)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	if _, err := replayOf(t, Target{Protocol: HTTP, Address: "host:1"}); err == nil {
		t.Error("an empty recording is taken")
	}
}

// Requests of a sequence take their turns, also where the one before was not sent.
func TestTheRequestsOfASequenceTakeTurns(t *testing.T) {
	t.Parallel()
	p := (&replay{requests: []replayed{{sequence: "a"}, {sequence: "b"}, {sequence: "a"}, {}}}).play()
	one, other, two, none := p.take(-1), p.take(-1), p.take(-1), p.take(-1)
	other.turn.await(t.Context())
	none.turn.await(t.Context())
	none.turn.pass()
	select {
	case <-two.turn.before:
		t.Error("the second request does not wait for the first")
	default:
	}
	one.turn.pass()
	two.turn.await(t.Context())
}
