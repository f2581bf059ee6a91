package e2e

import (
	"bytes"
	"context"
	"testing"

	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// bytesModel answers with the bytes that it gets.
const bytesModel = `
backend: "echo"
input [{ name: "x" data_type: TYPE_UINT8 dims: [-1] }]
output [{ name: "y" data_type: TYPE_UINT8 dims: [-1] }]
`

// TestServicesAsProcesses is the short of what NEREID_DEPLOYMENT=cluster tests
// at length: tensors that travel with their request and such that stay where
// they are until the worker reads them, over both protocols; a load; metrics;
// and the end of every process.
func TestServicesAsProcesses(t *testing.T) {
	s := startCluster(t, repository(t, map[string]string{"bytes/config.pbtxt": bytesModel, "bytes/1/.keep": ""}),
		"--model-control-mode=explicit")
	s.control(t, "load", "bytes", "", 200, "")
	grpc, err := client.GRPC(s.GRPC, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer grpc.Close()
	http := client.HTTP(s.HTTP, client.Options{})
	defer http.Close()
	for protocol, c := range map[string]client.Client{"http": http, "grpc": grpc} {
		for _, size := range []int{1, 100 << 10, 1 << 20, 4<<20 + 3} {
			if got, want := echoed(t, c, size), pattern(size); !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes came back as %d others", protocol, size, len(got))
			}
		}
	}
	s.wantMetrics(
		`nv_inference_request_success{model="bytes",version="1"} 8`,
		`nereid_gateway_requests_total{model="bytes",protocol="grpc",reason="ok"} 4`,
		"nereid_gateway_in_flight_requests 0",
		`nereid_worker_instances{model="bytes",state="READY",version="1"} 1`,
	)
	s.control(t, "unload", "bytes", "", 200, "")
	s.stop()
}

// pattern is a tensor that shows where a byte was lost or moved.
func pattern(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i % 251)
	}
	return data
}

func echoed(t *testing.T, c client.Client, size int) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := c.Infer(ctx, &client.Request{Model: "bytes", Inputs: []client.Tensor{
		{Description: client.Description{Name: "x", Datatype: tensor.Uint8, Shape: tensor.Shape{int64(size)}}, Data: pattern(size)},
	}})
	if err != nil || len(r.Outputs) != 1 {
		t.Fatalf("%d bytes: %v", size, err)
	}
	return r.Outputs[0].Data
}
