package gateway_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/libs/recording"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

func allowed(c *gateway.Config) { c.AllowRecording = config.Switch{On: true} }

// as returns a client with a tenant's key.
func (h *harness) as(key string) client.Client {
	h.t.Helper()
	c := client.HTTP(h.http, client.Options{Header: http.Header{"X-Api-Key": {key}}})
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// record starts a recording. It returns a function that reads the recording until the given number of requests
// have ended, and returns the requests recorded so far.
func (h *harness) record(key string, r *client.RecordRequest) func(ends int) []recording.Request {
	h.t.Helper()
	if r.Share == 0 {
		r.Share = 1
	}
	r.MaxBytes, r.Seconds = 1<<30, 3600
	ctx, cancel := context.WithCancel(h.t.Context())
	h.t.Cleanup(cancel)
	in, err := h.as(key).Record(ctx, r)
	if err != nil {
		h.t.Fatal(err)
	}
	return func(ends int) (list []recording.Request) {
		h.t.Helper()
		defer in.Close()
		reader, err := recording.NewReader(in)
		if err != nil {
			h.t.Fatal(err)
		}
		defer reader.Close()
		at := make(map[uint64]int)
		for ends > 0 {
			part, err := reader.Next()
			if err != nil {
				h.t.Fatalf("after %d requests: %v", len(list), err)
			}
			if q := part.GetRequest(); q != nil {
				at[q.GetNumber()] = len(list)
				list = append(list, recording.Request{RecordedRequest: q})
			}
			if e := part.GetEnd(); e != nil {
				ends--
				list[at[e.GetNumber()]].End = e
			}
		}
		return list
	}
}

// recordWhole starts a recording and sends it once it has ended.
func (h *harness) recordWhole(key string, r client.RecordRequest) <-chan *recording.Recording {
	h.t.Helper()
	in, err := h.as(key).Record(h.t.Context(), &r)
	if err != nil {
		h.t.Fatal(err)
	}
	read := make(chan *recording.Recording, 1)
	go func() {
		defer in.Close()
		all, err := recording.Read(in)
		if err != nil {
			h.t.Error(err)
		}
		read <- all
	}()
	return read
}

const recordedRequest = `{"id":"mine","parameters":{"sequence_id":"secret","sequence_start":true,"note":"secret","n":7},"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[3,4]}]}`

func (h *harness) send(key, body string) {
	h.t.Helper()
	q, err := http.NewRequestWithContext(h.t.Context(), http.MethodPost, "http://"+h.http+"/v2/models/m/infer", strings.NewReader(body))
	if err != nil {
		h.t.Fatal(err)
	}
	q.Header.Set("X-Api-Key", key)
	response, err := http.DefaultClient.Do(q)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		h.t.Fatalf("%d %s %v", response.StatusCode, text, err)
	}
	<-h.echo.submitted
}

// A recording contains what each tenant's tier allows, and a limited caller records only requests of models
// that it may use.
func TestARecordingHasWhatThePolicyAllows(t *testing.T) {
	b := openBus(t, bus.Config{Listen: "127.0.0.1:0"})
	key := func(name string) string { return "keys: [{sha256: " + policy.Key(name) + "}]" }
	put(&harness{t: t, bus: b}, bus.Policies, "current", &nereidv1.PolicyValue{Schema: nereidv1.Schema, Text: `
version: 1
tiers: {open: {recording: contents}, closed: {recording: nothing}}
tenants:
  open: {tier: open, ` + key("open") + `}
  closed: {tier: closed, ` + key("closed") + `}
  usual: {` + key("usual") + `}
  operator: {apis: [recording], ` + key("operator") + `}
  elsewhere: {apis: [recording], models: [other], ` + key("elsewhere") + `}
`})
	h := startWith(t, gateway.Deps{Bus: b}, nil, allowed)
	h.serveModel()
	all := h.record("operator", &client.RecordRequest{Answers: true})
	elsewhere := h.recordWhole("elsewhere", client.RecordRequest{Share: 1, MaxBytes: 1 << 20, Seconds: 3600})
	one := h.record("operator", &client.RecordRequest{Tenants: []string{"us*"}, Models: []string{"m"}})
	for _, name := range []string{"closed", "open", "usual"} {
		h.send(name, recordedRequest)
	}
	list := all(2)
	if len(list) != 2 || list[0].GetTenant() != "open" || list[1].GetTenant() != "usual" {
		t.Fatalf("recorded: %v", list)
	}
	data := []byte{3, 0, 0, 0, 4, 0, 0, 0}
	for i, contents := range [][][]byte{{data}, nil} {
		var q inference.ModelInferRequest
		if err := proto.Unmarshal(list[i].GetRequest(), &q); err != nil {
			t.Fatal(err)
		}
		if q.GetModelName() != "m" || q.GetInputs()[0].GetName() != "x" || list[i].GetInputBytes() != 8 || q.GetParameters()["n"].GetInt64Param() != 7 || list[i].GetRedacted() != (contents == nil) {
			t.Errorf("%v %v", list[i].RecordedRequest, &q)
		}
		if e := list[i].End; e.GetResponseCount() != 1 || e.GetReason() != "" || e.GetVersion() != 1 || e.GetTookNs() <= 0 {
			t.Errorf("the end is %v", e)
		}
		var answers [][]byte
		for _, message := range list[i].End.GetResponses() {
			var answer inference.ModelInferResponse
			if err := proto.Unmarshal(message, &answer); err != nil || answer.GetId() != "mine" {
				t.Errorf("%v: %v", err, &answer)
			}
			answers = append(answers, answer.GetRawOutputContents()...)
		}
		if diff := cmp.Diff([][][]byte{contents, contents}, [][][]byte{q.GetRawInputContents(), answers}); diff != "" {
			t.Errorf("contents (-want +got):\n%s", diff)
		}
		for _, own := range []string{"secret", "mine"} {
			if text := q.String(); strings.Contains(text, own) == list[i].GetRedacted() {
				t.Errorf("%q: %s", own, text)
			}
		}
	}
	if list := one(1); list[0].GetTenant() != "usual" || list[0].End.GetResponses() != nil {
		t.Errorf("of one tenant: %v", list)
	}
	if err := h.stop(); err != nil {
		t.Error(err)
	}
	if s := (<-elsewhere).Summary; s.Requests != 0 {
		t.Errorf("who may not use the model has recorded %v", s)
	}
}

// Recording is off by default, which is reported with a reason; the number of recordings is bounded; invalid
// options are refused.
func TestRecordingsAreRefused(t *testing.T) {
	off := startWith(t, gateway.Deps{Bus: openBus(t, bus.Config{Listen: "127.0.0.1:0"})}, nil)
	off.serveModel()
	if _, err := off.as("").Record(t.Context(), &client.RecordRequest{Share: 1, MaxBytes: 1, Seconds: 1}); errs.Of(err) != errs.Unsupported || !strings.Contains(err.Error(), "--allow-recording=true") {
		t.Errorf("off: %v", err)
	}
	on := startWith(t, gateway.Deps{Bus: openBus(t, bus.Config{Listen: "127.0.0.1:0"})}, nil, allowed)
	on.serveModel()
	for _, bad := range []client.RecordRequest{
		{Share: 0, MaxBytes: 1, Seconds: 1},
		{Share: 1.1, MaxBytes: 1, Seconds: 1},
		{Share: 1, MaxBytes: -1, Seconds: 1},
		{Share: 1, MaxBytes: 1, Seconds: 1e9},
		{Share: 1, MaxBytes: 1, Seconds: 1, Models: []string{"[a"}},
		{Share: 1, MaxBytes: 1, Seconds: 1, Models: make([]string, 60), Tenants: make([]string, 41)},
	} {
		if _, err := on.as("").Record(t.Context(), &bad); errs.Of(err) != errs.InvalidParameter {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 4 {
		in, err := on.as("").Record(ctx, &client.RecordRequest{Share: 1, MaxBytes: 1 << 20, Seconds: 3600})
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
	}
	if _, err := on.as("").Record(ctx, &client.RecordRequest{Share: 1, MaxBytes: 1, Seconds: 1}); errs.Of(err) != errs.RecordingBusy {
		t.Errorf("a fifth: %v", err)
	}
}

// A recording ends after its maximum bytes and when the gateway drains, each time with a summary.
func TestARecordingSaysWhyItEnds(t *testing.T) {
	h := startWith(t, gateway.Deps{Bus: openBus(t, bus.Config{Listen: "127.0.0.1:0"})}, nil, allowed)
	h.serveModel()
	bytes := h.recordWhole("", client.RecordRequest{Share: 1, MaxBytes: 1, Seconds: 3600})
	for range 2 { // the second one finds that the maximum is reached
		h.send("", inferBody)
	}
	if s := (<-bytes).Summary; s.Ended != "bytes" || s.Requests != 1 || s.Lost != 0 {
		t.Errorf("bytes: %v", s)
	}
	short := h.recordWhole("", client.RecordRequest{Share: 1, MaxBytes: 1 << 20, Seconds: 0.001})
	if s := (<-short).Summary; s.Ended != "duration" {
		t.Errorf("duration: %v", s)
	}
	draining := h.recordWhole("", client.RecordRequest{Share: 1, MaxBytes: 1 << 20, Seconds: 3600})
	h.send("", inferBody)
	if err := h.stop(); err != nil {
		t.Error(err)
	}
	if s := (<-draining).Summary; s.Ended != "draining" || s.Requests != 1 {
		t.Errorf("a stop: %v", s)
	}
}
