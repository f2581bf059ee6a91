package modelconfig_test

import (
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
)

func TestModelsSayWhetherRequestsShareExecutions(t *testing.T) {
	const tensors = `backend: "echo" input { name: "x" data_type: TYPE_INT8 dims: [ 1 ] } output { name: "y" data_type: TYPE_INT8 dims: [ 1 ] } max_batch_size: 2 `
	parameter := func(value string) string {
		return `parameters { key: "requests.share_in_flight" value { string_value: "` + value + `" } } `
	}
	for text, want := range map[string]bool{"": false, parameter("false"): false, parameter("true"): true} {
		c, err := modelconfig.Load([]byte(tensors+text), modelconfig.Directory{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		v, err := modelconfig.FromProto(c)
		if err != nil || v.Shared != want || v.Reuses() != want {
			t.Errorf("%q: %+v, %v", text, v, err)
		}
	}
	for text, want := range map[string]string{
		parameter("yes"): "requests.share_in_flight is 'yes'",
		parameter("true") + "model_transaction_policy { decoupled: true }": "decoupled transaction policy",
		parameter("true") + "sequence_batching { }":                        "sequence batching",
		parameter("true") + "dynamic_batching { preserve_ordering: true }": "preserve_ordering",
		parameter("") + "model_transaction_policy { decoupled: true }":     "requests.share_in_flight is ''",
	} {
		_, err := modelconfig.Load([]byte(tensors+text), modelconfig.Directory{Name: "m"})
		if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	_, err := modelconfig.Load([]byte(tensors+parameter("false")+"sequence_batching { }"), modelconfig.Directory{Name: "m"})
	if err != nil {
		t.Errorf("without sharing: %v", err)
	}
}
