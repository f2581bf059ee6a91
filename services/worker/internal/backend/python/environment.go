package python

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nereid-serving/nereid/services/worker/internal/backend"
)

// environmentParameter names a model's own Python: the directory of a virtual
// environment or of a conda environment, or an archive of the latter.
const environmentParameter = "EXECUTION_ENV_PATH"

// backendEnvironment is the archive with the environment of a Python-based backend,
// beside its code.
const backendEnvironment = "pb_exec_env_model.py.tar.gz"

// modelDirectory stands in it for the model's directory.
const modelDirectory = "$$TRITON_MODEL_DIRECTORY"

// environment is the directory of one.
type environment struct {
	dir     string
	virtual bool
}

// findEnvironment finds a model's environment, which it unpacks once where it is an
// archive.
func (b *Backend) findEnvironment(ctx context.Context, v backend.Version, path string) (environment, error) {
	if rest, ok := strings.CutPrefix(path, modelDirectory); ok {
		path = filepath.Join(v.ModelDir, rest)
	}
	s, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return environment{}, fmt.Errorf("%w: with a model from an object store comes an archive, NAME.tar.gz or NAME.tgz, that lies beside its versions", err)
	}
	if err != nil {
		return environment{}, err
	}
	if !s.IsDir() {
		if path, err = b.unpack(ctx, path); err != nil {
			return environment{}, err
		}
	}
	e := environment{dir: path}
	if _, err := os.Stat(e.interpreter()); err != nil {
		return e, fmt.Errorf("there is no bin/python in it: %w", err)
	}
	_, err = os.Stat(filepath.Join(path, "pyvenv.cfg"))
	e.virtual = err == nil
	return e, nil
}

func (e environment) interpreter() string { return filepath.Join(e.dir, "bin", "python") }

// variables are what activating the environment would set.
func (e environment) variables() []string {
	list := []string{"PATH=" + filepath.Join(e.dir, "bin") + ":" + os.Getenv("PATH")}
	if e.virtual {
		return append(list, "VIRTUAL_ENV="+e.dir)
	}
	libraries := filepath.Join(e.dir, "lib")
	if given := os.Getenv("LD_LIBRARY_PATH"); given != "" {
		libraries += ":" + given
	}
	return append(list, "CONDA_PREFIX="+e.dir, "LD_LIBRARY_PATH="+libraries)
}

// unpack unpacks an archive, once for what it holds, and returns the directory.
func (b *Backend) unpack(ctx context.Context, archive string) (string, error) {
	f, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, stoppable{ctx, f}); err != nil {
		return "", err
	}
	content := hex.EncodeToString(sum.Sum(nil))
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock() // while it is unpacked: whoever waits mostly needs the same
	if dir, ok := b.unpacked[content]; ok {
		return dir, nil
	}
	dir := filepath.Join(b.dir, "environments", content)
	err = unpackTo(dir, stoppable{ctx, f})
	if err == nil {
		err = b.user.own(filepath.Dir(dir))
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("unpack it: %w", err), os.RemoveAll(dir))
	}
	b.unpacked[content] = dir
	return dir, nil
}

// stoppable reads until its context is done.
type stoppable struct {
	ctx context.Context //nolint:containedctx // of the one call that reads
	io.Reader
}

func (s stoppable) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.Reader.Read(p)
}

// unpackTo unpacks a compressed archive into a new directory, and writes nothing
// outside it.
func unpackTo(dir string, from io.Reader) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	unzipped, err := gzip.NewReader(from)
	if err != nil {
		return fmt.Errorf("it is no directory, nor an archive of the form tar.gz: %w", err)
	}
	entries := tar.NewReader(unzipped)
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(root, h, entries); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func unpackEntry(root *os.Root, h *tar.Header, content io.Reader) error {
	name := filepath.Clean(h.Name)
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o700)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(filepath.Clean(h.Linkname), name)
	case tar.TypeReg:
	default: // devices and the like are in no environment
		return nil
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, os.FileMode(h.Mode)&0o700|0o600) //nolint:gosec // masked
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
