package onnxmodel_test

import (
	"encoding/hex"
	"testing"

	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// The models are proven where ONNX Runtime runs them; this pins one encoding
// against the field numbers of onnx.proto.
func TestEncoding(t *testing.T) {
	got := hex.EncodeToString(onnxmodel.Relu(tensor.FP32, "n", 2).Bytes())
	const floats = "120f" + "0a0d" + "0801" + "1209" + "0a0312016e" + "0a020802" // type: FLOAT [n,2]
	const want = "0808" +                                                        // ir_version: 8
		"120b6e65726569642d74657374" + // producer_name: nereid-test
		"3a5c" + // graph
		"0a17" + "0a06494e50555430" + "12074f555450555430" + "220452656c75" + // node: INPUT0, OUTPUT0, Relu
		"120a52656c755f6772617068" + // name: Relu_graph
		"5a19" + "0a06494e50555430" + floats + // input: INPUT0
		"621a" + "0a074f555450555430" + floats + // output: OUTPUT0
		"4204" + "0a00" + "1011" // opset_import: default, 17
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDimsRefuseOtherTypes(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Dims(1.5) is accepted")
		}
	}()
	onnxmodel.Dims(1.5)
}
