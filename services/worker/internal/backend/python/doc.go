// Package python is the backend of models that are Python code: files model.py with a
// class TritonPythonModel, as Triton's python backend runs them. Each instance has its
// own process, a stub, which package stub starts and talks to.
//
// An instance keeps a stub running. When a stub dies, the requests that it had started
// fail once, with the cause, and it is restarted after a delay that grows while that
// fails. Meanwhile the instance is away. See docs/design/python.md and
// docs/guides/python.md.
package python
