package backends

// The backends whose frameworks run models in the processes of Python models: their
// code is Python that comes with the server.

func tensorFlow() Descriptor {
	return Descriptor{
		Name: "tensorflow", BuiltIn: true, Hosted: true, CPU: true, GPU: true, CPUInstances: 2, RunsCode: true, CompletesTensors: true,
		Formats: []Format{
			{Platform: "tensorflow_savedmodel", File: "model.savedmodel"},
			{
				Platform: "tensorflow_graphdef", File: "model.graphdef",
				Instead: "save the graph as a SavedModel, by tf.compat.v1.saved_model.simple_save, or convert it with tf2onnx and set backend to onnxruntime",
			},
		},
	}
}

func openVINO() Descriptor {
	return Descriptor{
		Name: "openvino", BuiltIn: true, Hosted: true, CPU: true, GPU: true, RunsCode: true, CompletesTensors: true,
		Formats: []Format{{File: "model.xml", Standard: true}},
	}
}

func pyTorch() Descriptor {
	return Descriptor{
		Name: "pytorch", BuiltIn: true, Hosted: true, CPU: true, GPU: true, FileRequired: true, RunsCode: true,
		Formats: []Format{
			{Platform: "pytorch_libtorch", Aliases: []string{"libtorch"}, File: "model.pt", Standard: true},
			{Platform: "torch_aoti", File: "model.pt2"},
		},
	}
}
