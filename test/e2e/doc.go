// Package e2e tests the built program from outside: as a process that real
// clients talk to. It needs what `make e2e` prepares: the program, ONNX
// Runtime and the Python clients.
package e2e
