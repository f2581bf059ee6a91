package rest_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// Inferences get headers as parameters; generate requests, as with Triton, do not.
func TestHeadersReachInferencesAlone(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2), talker()}, func(o *rest.Options) { o.Forward = regexp.MustCompile("(?i)^X-") })
	header := map[string]string{"x-route": "a", "X-Api-Key": "secret"}
	if a := s.do(request{path: "/v2/models/simple/infer", body: pair(""), header: header}); !strings.Contains(a.Body, `"parameters":{"x-route":"a"}`) {
		t.Errorf("an inference: %s", a.Body)
	}
	s.scheduler.execute = talk
	for _, endpoint := range []string{"generate", "generate_stream"} {
		if a := s.do(request{path: "/v2/models/talk/" + endpoint, body: `{"TEXT":"a"}`, header: header}); a.Status != 200 || strings.Contains(a.Body, "x-route") {
			t.Errorf("%s: %s", endpoint, a.Body)
		}
	}
}
