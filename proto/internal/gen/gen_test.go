package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func TestCommittedCodeIsWhatTheDefinitionsGive(t *testing.T) {
	files, err := generate(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Errorf("%v; run go generate ./... in the proto module", err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its definition gives; run go generate ./... in the proto module", name)
		}
	}
	stale, err := staleFiles(root, files)
	if err != nil {
		t.Fatal(err)
	}
	if len(stale) > 0 {
		t.Errorf("%v have no definition any more; run go generate ./... in the proto module", stale)
	}
}

func TestFilesAreSentAfterTheirImports(t *testing.T) {
	names, err := find(root, ".proto")
	if err != nil {
		t.Fatal(err)
	}
	request, err := compile(t.Context(), root, names)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(map[string]bool)
	for _, file := range request.GetProtoFile() {
		for _, name := range file.GetDependency() {
			if !sent[name] {
				t.Errorf("%s is sent before %s, which it imports", file.GetName(), name)
			}
		}
		sent[file.GetName()] = true
	}
	for _, name := range names {
		if !sent[name] {
			t.Errorf("%s is not sent", name)
		}
	}
}

func TestSyntaxErrorsNameTheirPlace(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.proto"), []byte("syntax = \"proto3\";\nmessage A { oops }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := compile(t.Context(), dir, []string{"a.proto"})
	if err == nil || !strings.Contains(err.Error(), "a.proto:2:") {
		t.Errorf("error %v does not name a.proto:2", err)
	}
}
