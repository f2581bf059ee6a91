package rest_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

func TestStatistics(t *testing.T) {
	s := newServer(t, []*core.Model{simple(16), echo(tensor.FP32, 1)})
	tally := func(count uint64, ns time.Duration) infer.Tally { return infer.Tally{Count: count, Time: ns} }
	s.scheduler.counts = map[string]infer.Statistics{"simple": {
		LastInference: time.UnixMilli(1_700_000_000_123),
		Inferences:    12, Executions: 2,
		Success: tally(6, 11), Fail: tally(1, 12), Queue: tally(6, 13), Input: tally(5, 14), Infer: tally(5, 15), Output: tally(5, 16),
		CacheHit: tally(1, 17), CacheMiss: tally(5, 18),
		Batches: []infer.BatchStatistics{
			{Size: 4, Input: tally(1, 21), Infer: tally(1, 22), Output: tally(1, 23)},
			{Size: 8, Input: tally(1, 31), Infer: tally(1, 32), Output: tally(1, 33)},
		},
		Responses: []infer.ResponseStatistics{
			{Infer: tally(1, 41), Output: tally(2, 42), Success: tally(3, 43), Fail: tally(4, 44), Empty: tally(5, 45), Cancel: tally(6, 46)},
		},
	}}
	const run = `{"name":"simple","version":"1","last_inference":1700000000123,"inference_count":12,"execution_count":2,"inference_stats":{` +
		`"success":{"count":6,"ns":11},"fail":{"count":1,"ns":12},"queue":{"count":6,"ns":13},` +
		`"compute_input":{"count":5,"ns":14},"compute_infer":{"count":5,"ns":15},"compute_output":{"count":5,"ns":16},` +
		`"cache_hit":{"count":1,"ns":17},"cache_miss":{"count":5,"ns":18}},"response_stats":{"0":{"compute_infer":{"count":1,"ns":41},"compute_output":{"count":2,"ns":42},` +
		`"success":{"count":3,"ns":43},"fail":{"count":4,"ns":44},"empty_response":{"count":5,"ns":45},"cancel":{"count":6,"ns":46}}},"batch_stats":[` +
		`{"batch_size":4,"compute_input":{"count":1,"ns":21},"compute_infer":{"count":1,"ns":22},"compute_output":{"count":1,"ns":23}},` +
		`{"batch_size":8,"compute_input":{"count":1,"ns":31},"compute_infer":{"count":1,"ns":32},"compute_output":{"count":1,"ns":33}}],"memory_usage":[]}`
	const zero = `{"count":0,"ns":0}`
	const idle = `{"name":"echo","version":"1","last_inference":0,"inference_count":0,"execution_count":0,"inference_stats":{` +
		`"success":` + zero + `,"fail":` + zero + `,"queue":` + zero + `,"compute_input":` + zero + `,"compute_infer":` + zero +
		`,"compute_output":` + zero + `,"cache_hit":` + zero + `,"cache_miss":` + zero + `},"response_stats":{},"batch_stats":[],"memory_usage":[]}`
	for path, want := range map[string]string{
		"/v2/models/stats":                   idle + "," + run,
		"/v2/models/simple/stats":            run,
		"/v2/models/simple/versions/1/stats": run,
		"/v2/models/echo/stats":              idle,
	} {
		if got := s.do(request{method: "GET", path: path}); got.Status != 200 || got.Body != `{"model_stats":[`+want+`]}` {
			t.Errorf("%s: %d %s", path, got.Status, got.Body)
		}
	}
}

func TestModelConfiguration(t *testing.T) {
	const text = `backend: "onnxruntime" max_batch_size: 8 input { name: "x" data_type: TYPE_INT32 dims: 16 } output { name: "y" data_type: TYPE_INT32 dims: 16 }`
	source, err := modelconfig.Load([]byte(text), modelconfig.Directory{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	config, err := modelconfig.FromProto(source)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, []*core.Model{{Name: "m", Versions: []*core.Version{
		{Ref: infer.ModelRef{Name: "m", Version: 2}, Config: config, State: infer.Ready},
	}}})
	want := modelconfig.JSON(config.Shown(nil).Proto())
	if !json.Valid(want) || !bytes.HasPrefix(want, []byte(`{"name":"m",`)) {
		t.Fatalf("%s is no configuration", want)
	}
	for _, path := range []string{"/v2/models/m/config", "/v2/models/m/versions/2/config"} {
		if got := s.do(request{method: "GET", path: path}, "Content-Type"); got.Status != 200 || got.Body != string(want) || got.Header["Content-Type"] != "application/json" {
			t.Errorf("%s: %+v, want %s", path, got, want)
		}
	}
}
