package python_test

import (
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// reads begins a call that gives many results, and takes them when it is asked to.
const reads = imports + `
class TritonPythonModel:
    def execute(self, requests):
        taken = 0
        task = requests[0].request_id()
        if task == "begin":
            x = pb.get_input_tensor_by_name(requests[0], "X")
            call = pb.InferenceRequest(model_name="many", requested_output_names=["Y"], inputs=[x])
            self.results = call.exec(decoupled=True)
            next(self.results)
            taken = 1
        elif task == "rest":
            for response in self.results:
                assert not response.has_error(), response.error().message()
                taken += len(response.output_tensors())
        elif task == "drop":
            del self.results
        elif task == "end":
            os._exit(0)
        return [give(N=np.array([taken], np.float32))]
`

func TestResultsThatAModelDoesNotTakeAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		elements, given int
		then, want      string
	}{
		"small ones":       {1, 32, "rest", "N[1]=99"},
		"large ones":       {1 << 20, 4, "rest", "N[1]=99"},
		"larger than all":  {8 << 20, 2, "drop", "N[1]=0"}, // the one that was taken made room
		"dropped":          {1, 32, "drop", "N[1]=0"},
		"of one that ends": {1, 32, "end", ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := modelconfig.Config{Inputs: io(tensor.FP32, "X"), Outputs: io(tensor.FP32, "N")}
			config.Inputs[0].Optional = true
			w := run(t, reads, options{config: config})
			x := floats("X", make([]float32, c.elements)...)
			if got := w.show(w.infer(&infer.Request{ID: "begin", Inputs: []infer.Tensor{x}})); got != "N[1]=1" {
				t.Fatal(got)
			}
			for i := range c.given {
				if got := <-w.given; got != i {
					t.Fatalf("result %d came after %d", got, i-1)
				}
			}
			if got := w.show(w.infer(&infer.Request{ID: "look"})); got != "N[1]=0" {
				t.Fatal(got)
			}
			if len(w.given) > 0 {
				t.Errorf("more than %d results were given to a model that took one", c.given)
			}
			r := w.infer(&infer.Request{ID: c.then})
			if got := w.show(r); c.want != "" && got != c.want {
				t.Error(got)
			}
			for range w.given { // until the call has ended
			}
		})
	}
}
