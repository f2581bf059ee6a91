package onnxmodel

import (
	"os"
	"path/filepath"
	"testing"
)

// Library returns the path of the ONNX Runtime library to test with: that of
// NEREID_ONNXRUNTIME_LIBRARY, else .deps/onnxruntime/libonnxruntime.so in the
// working directory or one above it. Without either the test is skipped, or
// fails if NEREID_REQUIRE_ONNXRUNTIME is 1.
func Library(t testing.TB) string {
	t.Helper()
	if path := find(); path != "" {
		return path
	}
	const missing = "no ONNX Runtime library: run `make deps`, or set NEREID_ONNXRUNTIME_LIBRARY to its path"
	if os.Getenv("NEREID_REQUIRE_ONNXRUNTIME") == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

func find() string {
	if path := os.Getenv("NEREID_ONNXRUNTIME_LIBRARY"); path != "" {
		return path
	}
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	for {
		path := filepath.Join(dir, ".deps", "onnxruntime", "libonnxruntime.so")
		if _, err := os.Stat(path); err == nil {
			return path
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return ""
		}
		dir = parent
	}
}
