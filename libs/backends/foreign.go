package backends

// The backends of Triton that this release has no engine for.

func tensorFlow() Descriptor {
	return Descriptor{
		Name: "tensorflow", CPU: true, GPU: true, CPUInstances: 2, RunsCode: true,
		Formats: []Format{
			{Platform: "tensorflow_savedmodel", File: "model.savedmodel"},
			{Platform: "tensorflow_graphdef", File: "model.graphdef"},
		},
	}
}

func tensorRT() Descriptor {
	return Descriptor{
		Name: "tensorrt", GPU: true, FileRequired: true, Profiles: true,
		Formats: []Format{{Platform: "tensorrt_plan", File: "model.plan", Standard: true}},
	}
}

func openVINO() Descriptor {
	return Descriptor{Name: "openvino", CPU: true, Formats: []Format{{File: "model.xml", Standard: true}}}
}

func pyTorch() Descriptor {
	return Descriptor{
		Name: "pytorch", CPU: true, GPU: true, FileRequired: true, RunsCode: true,
		Formats: []Format{
			{Platform: "pytorch_libtorch", Aliases: []string{"libtorch"}, File: "model.pt", Standard: true},
			{Platform: "torch_aoti", File: "model.pt2"},
		},
	}
}

func python() Descriptor {
	return Descriptor{
		Name: "python", CPU: true, GPU: true, FileRequired: true, RunsCode: true,
		Formats: []Format{{File: "model.py", Standard: true}},
	}
}
