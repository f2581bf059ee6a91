package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// unpack checks the archive that make dist wrote against its checksum, and
// unpacks it. It returns the directory that the archive holds.
func unpack(t *testing.T, dist, into string) string {
	t.Helper()
	sums, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	digest, name, _ := strings.Cut(strings.TrimSpace(string(sums)), "  ")
	data, err := os.ReadFile(filepath.Join(dist, name))
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(data)); sum != digest {
		t.Errorf("SHA256SUMS has %s for %s, whose digest is %s", digest, name, sum)
	}
	plain, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	base := strings.TrimSuffix(name, ".tar.gz")
	for archive := tar.NewReader(plain); ; {
		entry, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return filepath.Join(into, base)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !filepath.IsLocal(entry.Name) || !strings.HasPrefix(entry.Name, base+"/") || entry.Typeflag != tar.TypeReg || entry.Uid != 0 || entry.Uname != "" {
			t.Fatalf("the archive has the entry %+v", entry)
		}
		path := filepath.Join(into, entry.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, entry.FileInfo().Mode()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestArchive runs what make dist packed, with nothing else: no variable of the
// environment, nothing on PATH, and an empty directory to start in.
func TestArchive(t *testing.T) {
	dist := os.Getenv("NEREID_ARCHIVE")
	if dist == "" {
		t.Skip("NEREID_ARCHIVE names no directory with an archive: run make dist-test")
	}
	inOneProcess(t)
	unpacked := unpack(t, dist, t.TempDir())
	program := filepath.Join(t.TempDir(), "nereid")
	if err := os.Symlink(filepath.Join(unpacked, "bin", "nereid"), program); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(unpacked, "examples", "models", "simple", "1", "model.onnx")
	alone := func(t *testing.T, environment []string, arguments ...string) *process {
		command := exec.Command(program, arguments...)
		command.Dir, command.Env = t.TempDir(), append([]string{"PATH=" + t.TempDir()}, environment...)
		return follow(t, "the unpacked nereid", command)
	}

	t.Run("a model file is served", func(t *testing.T) {
		p := alone(t, nil, append([]string{"serve", "sum=" + model, "--log-format=json"}, anyPorts()...)...)
		s := &server{process: p, models: p, all: []*process{p}}
		s.expect("started")
		s.HTTP = s.said().HTTP
		status, text := s.do(http.MethodPost, s.HTTP+"/v2/models/sum/infer", addSubJSON)
		if status != http.StatusOK || !strings.Contains(text, "[2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]") {
			t.Errorf("infer: %d %s", status, text)
		}
	})
	words := filepath.Join(unpacked, "examples", "models", "words")
	t.Run("a Python model is served where NumPy is", func(t *testing.T) {
		alone(t, []string{"NEREID_PYTHON=" + interpreter(t)}, append([]string{"serve", words, "--log-format=json"}, anyPorts()...)...).expect("started")
	})
	t.Run("a Python model without Python says what is missing", func(t *testing.T) {
		p := alone(t, nil, append([]string{"serve", words, "--log-format=json"}, anyPorts()...)...)
		if status := p.exit(); status == 0 || !strings.Contains(p.text(), "install Python 3.8 or newer with numpy") {
			t.Errorf("the exit status is %d", status)
		}
	})
	t.Run("all that is linked has its license", func(t *testing.T) {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		for _, module := range info.Deps {
			if module.Replace != nil || strings.HasPrefix(module.Path, "github.com/nereid-serving/") {
				continue
			}
			if files, _ := filepath.Glob(filepath.Join(unpacked, "licenses", module.Path, "*")); len(files) == 0 {
				t.Errorf("there is no license of %s", module.Path)
			}
		}
	})
	t.Run("the same program is packed into the same bytes", func(t *testing.T) {
		again := t.TempDir()
		pack := exec.Command("python3", filepath.Join(root(t), "deploy", "dist", "pack.py"), filepath.Join(unpacked, "bin", "nereid"), again)
		if out, err := pack.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		first, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		if second, err := os.ReadFile(filepath.Join(again, "SHA256SUMS")); err != nil || !bytes.Equal(first, second) {
			t.Errorf("packed again it is %s, and was %s: %v", second, first, err)
		}
	})
}
