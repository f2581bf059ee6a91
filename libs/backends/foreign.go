package backends

// The backends of Triton that this release has no engine for.

func tensorFlow() Descriptor {
	return Descriptor{
		Name: "tensorflow", CPU: true, GPU: true, CPUInstances: 2, RunsCode: true,
		Instead: "convert the model with tf2onnx and set backend to onnxruntime",
		Formats: []Format{
			{Platform: "tensorflow_savedmodel", File: "model.savedmodel"},
			{Platform: "tensorflow_graphdef", File: "model.graphdef"},
		},
	}
}

func tensorRT() Descriptor {
	return Descriptor{
		Name: "tensorrt", GPU: true, FileRequired: true, Profiles: true,
		Instead: "serve the ONNX model from which the plan was built: set backend to onnxruntime",
		Formats: []Format{{Platform: "tensorrt_plan", File: "model.plan", Standard: true}},
	}
}

func openVINO() Descriptor {
	return Descriptor{
		Name: "openvino", CPU: true, Formats: []Format{{File: "model.xml", Standard: true}},
		Instead: "export the model to ONNX from the framework that it was made with, and set backend to onnxruntime",
	}
}

func pyTorch() Descriptor {
	return Descriptor{
		Name: "pytorch", CPU: true, GPU: true, FileRequired: true, RunsCode: true,
		Instead: "export the model with torch.onnx.export and set backend to onnxruntime, or run it in a Python model",
		Formats: []Format{
			{Platform: "pytorch_libtorch", Aliases: []string{"libtorch"}, File: "model.pt", Standard: true},
			{Platform: "torch_aoti", File: "model.pt2"},
		},
	}
}

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
		Instead: "run vLLM in a Python model, which gives its engine what model.json has: set backend to python",
	}
}

func dali() Descriptor {
	return Descriptor{
		Name: "dali", CPU: true, GPU: true, RunsCode: true,
		Instead: "prepare the data in a Python model, or in operators of the ONNX model",
	}
}
