package backends

// The backends of Triton that this release has no engine for.

// forest is FIL, the Forest Inference Library.
func forest() Descriptor {
	return Descriptor{
		Name: "fil", CPU: true, GPU: true,
		Instead: "convert the trees with onnxmltools or skl2onnx and set backend to onnxruntime",
	}
}

func vLLM() Descriptor {
	return Descriptor{
		Name: "vllm", GPU: true,
		Instead: "name the directory that has vllm/model.py by --backend-directory, or run vLLM in a Python model, which gives its engine what model.json has",
	}
}

func dali() Descriptor {
	return Descriptor{
		Name: "dali", CPU: true, GPU: true, RunsCode: true,
		Instead: "prepare the data in a Python model, or in operators of the ONNX model",
	}
}
