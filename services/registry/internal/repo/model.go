package repo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/services/registry/internal/snapshot"
)

const configFile = "config.pbtxt"

// fill reads what a model directory holds into m. The error is the model's
// problem.
func (s *Scanner) fill(ctx context.Context, m *snapshot.Model, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return problem("model directory %s cannot be read: %v", dir, cause(err))
	}
	available, warnings := versionNumbers(dir, entries)
	m.Warnings = warnings
	text, err := readConfig(filepath.Join(dir, configFile))
	if err != nil {
		return err
	}
	config, err := modelconfig.Load(text, modelconfig.Directory{Name: m.Name, Files: firstFiles(dir, available)})
	if err != nil {
		return problem("%s: %s", configFile, errs.From(err).Msg)
	}
	m.Config = config
	selected, missing := modelconfig.SelectVersions(config.GetVersionPolicy(), available)
	if len(missing) > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("version policy names versions that do not exist: %v", missing))
	}
	if len(selected) == 0 {
		return problem("at least one version must be available under the version policy of model '%s': add a directory such as %s", m.Name, filepath.Join(dir, "1"))
	}
	for _, number := range selected {
		m.Versions = append(m.Versions, s.version(ctx, dir, number))
	}
	return nil
}

func (s *Scanner) version(ctx context.Context, dir string, number int64) snapshot.Version {
	path := filepath.Join(dir, strconv.FormatInt(number, 10))
	v := snapshot.Version{Number: number, URL: fileURL(path)}
	digest, err := s.digests.directory(ctx, path)
	if err != nil {
		v.Problem = fmt.Sprintf("version %d cannot be read: %v", number, err)
		return v
	}
	v.Digest = digest
	return v
}

// versionNumbers gives the version directories, and a warning for each
// directory that looks meant as one and is none.
func versionNumbers(dir string, entries []fs.DirEntry) (numbers []int64, warnings []string) {
	for _, entry := range entries {
		name := entry.Name()
		if hidden(name) || reserved(name) || !isDir(filepath.Join(dir, name)) {
			continue
		}
		number, err := strconv.ParseUint(name, 10, 63)
		if err != nil || strconv.FormatUint(number, 10) != name {
			warnings = append(warnings, fmt.Sprintf("directory %q is ignored: a version is a number without leading zeros", name))
			continue
		}
		numbers = append(numbers, int64(number))
	}
	return numbers, warnings
}

// reserved names have a meaning of their own within a model directory.
func reserved(name string) bool {
	return slices.Contains([]string{"warmup", "initial_state", "configs"}, name)
}

// firstFiles lists the version directory that comes first by spelling, which
// is where the format looks for the model file that tells the backend.
func firstFiles(dir string, available []int64) []string {
	if len(available) == 0 {
		return nil
	}
	names := make([]string, len(available))
	for i, number := range available {
		names[i] = strconv.FormatInt(number, 10)
	}
	entries, err := os.ReadDir(filepath.Join(dir, slices.Min(names)))
	if err != nil {
		return nil // the version's own problem tells
	}
	files := make([]string, len(entries))
	for i, entry := range entries {
		files[i] = entry.Name()
	}
	return files
}

// readConfig reads at most one byte more than a configuration may have, so
// that its length is judged where the limit is known.
func readConfig(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, problem("%s does not exist: write one that names backend, input and output", path)
	}
	if err == nil && !info.Mode().IsRegular() {
		return nil, problem("%s is not a regular file", path)
	}
	if err != nil {
		return nil, problem("%s cannot be read: %v", path, cause(err))
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, problem("%s cannot be read: %v", path, cause(err))
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, modelconfig.MaxText+1))
	if err != nil {
		return nil, problem("%s cannot be read: %v", path, cause(err))
	}
	return text, nil
}

func problem(format string, args ...any) error {
	return errs.New(errs.ConfigInvalid, format, args...)
}
