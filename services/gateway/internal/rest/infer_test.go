package rest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestJSONRequestGetsJSONAnswer(t *testing.T) {
	s := newServer(t, []*core.Model{simple(2)})
	got := s.do(request{path: "/v2/models/simple/infer", body: `{"id":"a1","inputs":[
		{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1,2]},
		{"name":"INPUT1","datatype":"INT32","shape":[1,2],"data":[[10,-2]]}]}`}, "Content-Type", "Content-Length")
	want := answer{
		Status: 200,
		Header: map[string]string{"Content-Type": "application/json", "Content-Length": "197"},
		Body: `{"id":"a1","model_name":"simple","model_version":"1","outputs":[` +
			`{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"data":[11,0]},` +
			`{"name":"OUTPUT1","datatype":"INT32","shape":[1,2],"data":[-9,4]}]}`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	s.checkMemory(t)
}
