package rest_test

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestOutputsAreClassified(t *testing.T) {
	labeled := simple(2)
	labeled.Versions[0].Config.Outputs[0].Labels = []string{"sum \"0\"", "sum 1"}
	// The elements of OUTPUT0, with the length of each before it.
	const strings = "\x0c\x00\x00\x0011:0:sum \"0\""
	const head = `{"model_name":"simple","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"BYTES","shape":[1,1],`
	const binary = head + `"parameters":{"binary_data_size":16}}]}`
	for _, c := range []struct {
		name       string
		parameters string
		header     string
		want       string
	}{
		{
			"as JSON, beside an output that is not",
			`"outputs":[{"name":"OUTPUT0","parameters":{"classification":2}},{"name":"OUTPUT1"}],`, "",
			`{"model_name":"simple","model_version":"1","outputs":[` +
				`{"name":"OUTPUT0","datatype":"BYTES","shape":[1,2],"data":["11:0:sum \"0\"","0:1:sum 1"]},` +
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,4]}]}`,
		},
		{
			"without labels", `"outputs":[{"name":"OUTPUT1","parameters":{"classification":9}}],`, "",
			`{"model_name":"simple","model_version":"1","outputs":[{"name":"OUTPUT1","datatype":"BYTES","shape":[1,2],"data":["4:1","-9:0"]}]}`,
		},
		{
			"as bytes", `"outputs":[{"name":"OUTPUT0","parameters":{"classification":1,"binary_data":true}}],`, strconv.Itoa(len(binary)),
			binary + strings,
		},
		{
			"none wanted is not classified", `"outputs":[{"name":"OUTPUT1","parameters":{"classification":0}}],`, "",
			`{"model_name":"simple","model_version":"1","outputs":[{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,4]}]}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, []*core.Model{labeled})
			want := response{200, map[string]string{"Inference-Header-Content-Length": c.header}, c.want}
			if d := cmp.Diff(want, s.doLike(request{path: "/v2/models/simple/infer", body: pair(c.parameters)}, want)); d != "" {
				t.Error(d)
			}
			s.checkMemory(t)
		})
	}
}

// The classes that one request asks for are not those of the next.
func TestClassesAreForgottenWithTheirRequest(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	s.do(request{path: "/v2/models/simple/infer", body: pair(`"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}],`)})
	want := response{Status: 200, Body: pairResponse}
	if d := cmp.Diff(want, s.do(request{path: "/v2/models/simple/infer", body: pair("")})); d != "" {
		t.Error(d)
	}
}

func TestClassesThatCannotBeAreRefusedUnexecuted(t *testing.T) {
	s := newServer(t, []*core.Model{echo(tensor.Bool, -1)})
	s.scheduler.submit = func(*infer.Request) error {
		t.Error("the request was submitted")
		return nil
	}
	body := `{"outputs":[{"name":"OUT","parameters":{"classification":1}}],"inputs":[{"name":"IN","datatype":"BOOL","shape":[1],"data":[true]}]}`
	want := inferRefusal(400, "class result not available for output due to unsupported type 'BOOL'", "invalid_parameter")
	if d := cmp.Diff(want, s.doLike(request{path: "/v2/models/echo/infer", body: body}, want)); d != "" {
		t.Error(d)
	}
	s.checkMemory(t)
}

// A request whose loaded version has gone is executed by the next one, with that
// one's labels.
func TestClassesAreNamedByTheVersionThatExecuted(t *testing.T) {
	content := func(generation uint64, label string) *core.Model {
		m := simple(2)
		m.Versions[0].Ref.Generation = generation
		m.Versions[0].Config.Outputs[0].Labels = []string{label}
		return m
	}
	s := newServer(t, []*core.Model{content(1, "old")})
	s.scheduler.execute = nil
	s.scheduler.submit = func(q *infer.Request) error {
		p := compute(q)
		p.Work, p.Final = q.Work, true
		if q.Model.Generation == 1 {
			s.gateway.Update(core.NewSnapshot(4, true, []*core.Model{content(2, "new")}))
			p = infer.Fail(q.Work, errs.New(errs.NoWorker, "gone"))
			p.Returned = q
		} else {
			q.Release()
		}
		s.scheduler.table.Respond(p)
		return nil
	}
	want := response{Status: 200, Body: `{"model_name":"simple","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"BYTES","shape":[1,1],"data":["11:0:new"]}]}`}
	body := pair(`"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}],`)
	if d := cmp.Diff(want, s.do(request{path: "/v2/models/simple/infer", body: body})); d != "" {
		t.Error(d)
	}
	s.checkMemory(t)
}
