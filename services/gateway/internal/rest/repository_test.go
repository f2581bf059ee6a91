package rest_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/gateway/internal/rest"
)

// registry notes what it is asked, and refuses models of one name.
type registry struct{ asked []string }

func (r *registry) Load(_ context.Context, model, config string, files map[string][]byte) error {
	text := fmt.Sprintf("load %s config=%s", model, config)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		text += fmt.Sprintf(" %s=%s", path, files[path])
	}
	r.asked = append(r.asked, text)
	if model == "bad" {
		return errs.New(errs.LoadFailed, "load failed for model 'bad'")
	}
	return nil
}

func (r *registry) Unload(_ context.Context, model string, dependents bool) error {
	r.asked = append(r.asked, fmt.Sprintf("unload %s dependents=%t", model, dependents))
	return nil
}

func TestLoadAndUnload(t *testing.T) {
	tests := map[string]struct {
		path, body string
		status     int
		asked      string
		response   string
	}{
		"load":                       {"/v2/repository/models/m/load", "", 200, "load m config=", ""},
		"an escaped name":            {"/v2/repository/models/a%20b%2Fc/load", "{}", 200, "load a b/c config=", ""},
		"a configuration and files":  {"/v2/repository/models/m/load", `{"parameters":{"config":"{}","file:1/f":"aGk=","file:g":""}}`, 200, "load m config={} 1/f=hi g=", ""},
		"a load that fails":          {"/v2/repository/models/bad/load", "", 400, "load bad config=", "load failed for model 'bad'"},
		"unload":                     {"/v2/repository/models/m/unload", "", 200, "unload m dependents=false", ""},
		"unload with dependents":     {"/v2/repository/models/m/unload", `{"parameters":{"unload_dependents":true}}`, 200, "unload m dependents=true", ""},
		"a repository's name":        {"/v2/repository/r/models/m/load", "", 501, "", "'repository_name' specification is not supported"},
		"and to unload":              {"/v2/repository/r/models/m/unload", "", 501, "", "'repository_name' specification is not supported"},
		"no JSON":                    {"/v2/repository/models/m/load", "{", 500, "", "failed to parse the request JSON buffer"},
		"an empty configuration":     {"/v2/repository/models/m/load", `{"parameters":{"config":""}}`, 400, "", "Invalid config override"},
		"a configuration of no text": {"/v2/repository/models/m/load", `{"parameters":{"config":1}}`, 400, "", "invalid value type for load parameter 'config'"},
		"no object":                  {"/v2/repository/models/m/load", "[]", 200, "load m config=", ""},
		"no object to unload":        {"/v2/repository/models/m/unload", "1", 200, "unload m dependents=false", ""},
		"parameters of no object":    {"/v2/repository/models/m/load", `{"parameters":[]}`, 500, "", "an object is expected"},
		"no base64":                  {"/v2/repository/models/m/load", `{"parameters":{"config":"{}","file:f":"%"}}`, 400, "", "is not base64"},
		"another parameter":          {"/v2/repository/models/m/load", `{"parameters":{"x":"y"}}`, 400, "", "unrecognized load parameter 'x'."},
		"no boolean":                 {"/v2/repository/models/m/unload", `{"parameters":{"unload_dependents":"yes"}}`, 400, "", "expected a boolean"},
		"a body that is too large":   {"/v2/repository/models/m/load", `{"parameters":{"config":"` + strings.Repeat("x", 2048) + `"}}`, 400, "", "Use --http-max-input-size"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			asked := &registry{}
			s := newServerOf(t, asked, func(o *rest.Options) { o.MaxInput = 1024 })
			got := s.do(request{path: tt.path, body: tt.body})
			if got.Status != tt.status || !strings.Contains(got.Body, tt.response) {
				t.Errorf("response %d %s, want %d with %q", got.Status, got.Body, tt.status, tt.response)
			}
			if text := strings.Join(asked.asked, "; "); text != tt.asked {
				t.Errorf("asked %q, want %q", text, tt.asked)
			}
		})
	}
}

func TestFilesOfALoadAreCountedBeforeTheyAreRead(t *testing.T) {
	const config = `"config":"{\"a\":1,\"b\":{}}"`
	body := func(first string, n int, key string) string {
		list := []string{first}
		for i := range n {
			list = append(list, fmt.Sprintf(`"file:%s":""`, strings.ReplaceAll(key, "#", fmt.Sprint(i))))
		}
		return `{"parameters":{` + strings.Join(list, ",") + `}}`
	}
	most := modelfiles.MaxLoadFiles
	tests := map[string]struct {
		path, body string
		status     int
	}{
		"as many as there may be":       {"load", body(config, most, "1/#"), 200},
		"one more":                      {"load", body(config, most+1, "1/#"), 413},
		"one more, for a configuration": {"load", body(`"file:f":""`, most, "1/#"), 413},
		"one that is given often":       {"load", body(config, most+1, "1/a:{}"), 413},
		"names like JSON":               {"load", body(config, most, `\"#:{[\\`), 200},
		"an unload":                     {"unload", body(config, most+1, "f"), 413},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			asked := &registry{}
			s := newServerOf(t, asked)
			got := s.do(request{path: "/v2/repository/models/m/" + tt.path, body: tt.body})
			want := fmt.Sprintf("more than %d files are given to load a model with: put models of more files into the repository", most)
			if got.Status != tt.status || strings.Contains(got.Body, want) != (tt.status == 413) {
				t.Errorf("response %d %.200s, want %d", got.Status, got.Body, tt.status)
			}
			if (len(asked.asked) == 1) != (tt.status == 200) {
				t.Errorf("the registry was asked %d times", len(asked.asked))
			}
		})
	}
}
