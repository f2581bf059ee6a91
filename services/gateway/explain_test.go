package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

// Any gateway explains a request that another one served, with what the schedulers know about it. Tenants see
// only their own requests.
func TestAnyGatewayExplainsARequest(t *testing.T) {
	first := openBus(t, bus.Config{Listen: "127.0.0.1:0"})
	second, err := bus.Open(t.Context(), bus.Config{URL: first.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	put(&harness{t: t, bus: first}, bus.Policies, "current", &nereidv1.PolicyValue{Schema: nereidv1.Schema, Text: `
version: 1
tiers: {t: {apis: [inference, explain]}}
tenants:
  a: {tier: t, keys: [{name: test, sha256: ` + policy.Key("key-a") + `}]}
  b: {tier: t, keys: [{name: test, sha256: ` + policy.Key("key-b") + `}]}
`})
	var all []*harness
	for i, b := range []*bus.Bus{first, second} {
		all = append(all, startWith(t, gateway.Deps{Bus: b}, nil, func(c *gateway.Config) { c.ID = "g" + strconv.Itoa(i) }))
	}
	all[0].serveModel()
	<-all[1].gateway.Started()
	answering, stop := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() { // the scheduler
		answered <- first.Answer(answering, bus.AskSchedulers, func(question []byte) []byte {
			var q infer.ExplainQuestion
			if err := json.Unmarshal(question, &q); err != nil {
				return nil
			}
			answer, _ := json.Marshal([]infer.ExplainedDecision{{Pool: "p", What: "seen as " + q.Request}})
			return answer
		})
	}()
	defer func() {
		stop()
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}()
	call := func(h *harness, method, path, key, body string) (*http.Response, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+h.http+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Api-Key", key)
		response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response, string(text)
	}
	response, body := call(all[0], http.MethodPost, "/v2/models/m/infer", "key-a", inferBody)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", response.StatusCode, body)
	}
	<-all[0].echo.submitted
	id := response.Header.Get("Nereid-Request-Id")
	for i, h := range all {
		response, body := call(h, http.MethodGet, "/nereid/requests/"+id, "key-a", "")
		var e infer.Explanation
		if err := json.Unmarshal([]byte(body), &e); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("gateway %d: %d %s", i, response.StatusCode, body)
		}
		if e.RequestID != id || e.Tenant != "a" || len(e.Decisions) != 1 || e.Decisions[0].What != "seen as "+id {
			t.Errorf("gateway %d: %s", i, body)
		}
		if response, body := call(h, http.MethodGet, "/nereid/requests/"+id, "key-b", ""); response.StatusCode != http.StatusNotFound || !strings.Contains(body, "each gateway") {
			t.Errorf("gateway %d tells another tenant: %d %s", i, response.StatusCode, body)
		}
	}
}
