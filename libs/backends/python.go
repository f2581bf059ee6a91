package backends

// Python is the name of the backend for models that are Python code.
const Python = "python"

func python() Descriptor {
	return Descriptor{
		Name: Python, BuiltIn: true, CPU: true, GPU: true, FileRequired: true, RunsCode: true, CompletesItself: true,
		Formats: []Format{{File: "model.py", Standard: true}},
	}
}
