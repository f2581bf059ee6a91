// Package python is the backend of models that are Python code: files model.py with a
// class TritonPythonModel, as Triton's python backend runs them. Each instance has a
// process of its own, a stub, which the package of package stub starts and talks to.
//
// An instance keeps a stub running: one that ends fails what it had begun, once, with
// the cause, and is started again, after a pause that grows while that goes wrong.
// Meanwhile the instance is away. The pages docs/design/python.md and
// docs/guides/python.md have the rest.
package python
