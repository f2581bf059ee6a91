package path_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
	"github.com/nereid-serving/nereid/services/gateway/internal/path"
)

// forwarded sends an inference with headers through a path with the pattern, and returns
// what the request has become.
func forwarded(t *testing.T, pattern string, headers map[string][]string, given ...infer.Parameter) (got []infer.Parameter, err error) {
	t.Helper()
	compiled, err := path.ForwardPattern("--pattern", pattern)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, path.Options{
		Forward: compiled, Budget: memory.NewBudget(16 << 20),
		Restricted: core.Restrictions{core.StatisticsAPI: {Header: "Admin-Key", Value: "secret"}},
	})
	r.decode = func(c *path.Call) error {
		c.Request.Parameters = given
		return nil
	}
	r.submit = func(q *infer.Request) error {
		got = q.Parameters
		r.respond(q, r.response(true))
		return nil
	}
	c := r.call(core.InferenceAPI, "m")
	c.Body = body{r, c}
	if headers != nil {
		c.Headers = func(each func(string, []string)) {
			for name, values := range headers {
				each(name, values)
			}
		}
	}
	return got, r.Infer(t.Context(), c)
}

func TestHeadersBecomeParameters(t *testing.T) {
	parameter := func(key, value string) infer.Parameter { return infer.Parameter{Key: key, Value: value} }
	headers := map[string][]string{
		"X-Route": {"a", "b"}, "x-user": {"u"}, "Authorization": {"Bearer x"}, "X-Api-Key": {"k"}, "Cookie": {"c"}, "Proxy-Authorization": {"p"},
		"Admin-Key": {"secret"}, ":authority": {"h"}, "x-trace-bin": {"\xff"}, "X-None": {},
	}
	for name, c := range map[string]struct {
		pattern string
		headers map[string][]string
		given   []infer.Parameter
		want    []infer.Parameter
	}{
		"in part, whatever the case":      {"X-R", headers, nil, []infer.Parameter{parameter("x-route", "b")}},
		"all but what is private":         {".*", headers, nil, []infer.Parameter{parameter("x-route", "b"), parameter("x-user", "u")}},
		"with case":                       {"(?-i)X-R", headers, nil, []infer.Parameter{parameter("x-route", "b")}},
		"with lower case":                 {"(?-i)x-r", headers, nil, []infer.Parameter{parameter("x-route", "b")}},
		"with another case":               {"(?-i)X-ROUTE|X-USER", headers, nil, nil},
		"with case, what is private":      {"(?-i)^(Authorization|Cookie|Admin-Key)$", headers, nil, nil},
		"in the place of a parameter":     {"route", headers, []infer.Parameter{{Key: "x-route", Value: int64(1)}, {Key: "k", Value: true}}, []infer.Parameter{parameter("x-route", "b"), {Key: "k", Value: true}}},
		"without a pattern":               {"", headers, nil, nil},
		"of a call that has none to give": {".*", nil, nil, nil},
	} {
		got, err := forwarded(t, c.pattern, c.headers, c.given...)
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
	}
}

func TestHeadersThatCannotBeForwardedAreRefused(t *testing.T) {
	many := make(map[string][]string)
	for i := range 8193 {
		many["x-"+strconv.Itoa(i)] = []string{""}
	}
	for name, c := range map[string]struct {
		headers map[string][]string
		want    string
		reason  errs.Reason
	}{
		"a reserved name":   {map[string][]string{"Timeout": {"5"}}, "Header 'timeout' is reserved for Triton usage and cannot be forwarded.", errs.InvalidParameter},
		"a reserved prefix": {map[string][]string{"Triton_x": {"5"}}, "Header 'triton_x' is reserved for Triton usage and cannot be forwarded.", errs.InvalidParameter},
		"another charset":   {map[string][]string{"x-name": {"J\xfcrgen"}}, "Header 'x-name' is not UTF-8 and cannot be forwarded.", errs.InvalidParameter},
		"too many":          {many, "more than 8192 headers are to be forwarded: send what is much as a tensor", errs.BodyTooLarge},
		"too large":         {map[string][]string{"x": {strings.Repeat("x", 32<<20)}}, "", errs.MemoryFull},
	} {
		_, err := forwarded(t, ".*", c.headers)
		if errs.Of(err) != c.reason || c.want != "" && errs.From(err).Msg != c.want {
			t.Errorf("%s: %v, want %s %q", name, err, c.reason, c.want)
		}
	}
	if _, err := path.ForwardPattern("--p", "("); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("a pattern that is none: %v", err)
	}
}
