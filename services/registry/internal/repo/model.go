package repo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/registry/core/catalog"
)

// fill reads what a model directory holds into m, with given as the text of
// its configuration unless that is nil. The error is the model's problem.
func (s *reader) fill(ctx context.Context, m *catalog.Model, dir string, given []byte) error {
	entries, err := s.options.from.ReadDir(dir)
	if err != nil {
		if _, lerr := s.options.from.Lstat(dir); lerr == nil && errors.Is(err, fs.ErrNotExist) {
			return problem("model directory %s is a link to what is not there: remove it, or put the directory where it leads", dir)
		}
		return problem("model directory %s cannot be read: %v: let the server read it, or remove it from the repository", dir, cause(err))
	}
	available, warnings := versionNumbers(s.options.from, dir, entries)
	m.Warnings = warnings
	// Listed before the configuration is completed from model files, so that
	// one that changes meanwhile is noticed when it is digested.
	trees := s.listVersions(ctx, dir, available)
	if err := s.config(ctx, m, dir, available, given, trees); err != nil {
		if len(available) == 0 {
			return append(problemsOf(err), problemsOf(noVersion(m.Name, dir, entries))...).AsError(m.Name)
		}
		return err
	}
	if err := s.checkAgents(ctx, m, dir); err != nil {
		return err
	}
	if err := s.refuseStrategy(dir, available); err != nil {
		return err
	}
	selected, missing := modelconfig.SelectVersions(m.Config.GetVersionPolicy(), available)
	if len(missing) > 0 {
		m.Warnings = append(m.Warnings, fmt.Sprintf("version policy names versions that do not exist: %v", missing))
	}
	m.NoVersion = len(selected) == 0
	if len(selected) == 0 && len(missing) > 0 {
		return problem("at least one version must be available under the version policy of model '%s': it names versions %v, and there are %v", m.Name, missing, available)
	}
	if len(selected) == 0 {
		return noVersion(m.Name, dir, entries)
	}
	for _, number := range selected {
		m.Versions = append(m.Versions, s.version(ctx, versionDir(dir, number), number, trees[number]))
	}
	return nil
}

// noVersion returns where a model's files belong, by the mistake that the
// directory shows.
func noVersion(model, dir string, entries []fs.DirEntry) error {
	fix := "add a directory such as " + modelfiles.Join(dir, "1")
	for _, entry := range entries {
		name := entry.Name()
		switch bare := strings.TrimLeft(strings.TrimPrefix(strings.ToLower(name), "v"), "0"); {
		case strings.HasPrefix(name, "model."):
			fix = fmt.Sprintf("move %s into a directory such as %s", name, modelfiles.Join(dir, "1"))
		case bare != name && bare != "" && strings.Trim(bare, "0123456789") == "":
			fix = fmt.Sprintf("rename %s to %s", modelfiles.Join(dir, name), bare)
		}
	}
	return problem("at least one version must be available under the version policy of model '%s': %s", model, fix)
}

// config reads the configuration of the model in dir into m.
func (s *reader) config(ctx context.Context, m *catalog.Model, dir string, available []int64, given []byte, trees map[int64]listed) error {
	file := s.options.file(dir)
	if info, err := s.options.from.Stat(modelfiles.Join(dir, file)); err == nil {
		s.observed.note(info.ModTime())
	}
	text, err := s.options.text(dir, file)
	if given != nil {
		m.ReplacedConfig = fmt.Sprintf("sha256:%x", sha256.Sum256(text)) // of none where it cannot be read
		file, text, err = givenFile, given, nil
	}
	if err != nil {
		return err
	}
	open := s.opener(dir)
	config, err := modelconfig.Load(text, modelconfig.Directory{
		Name: m.Name, Files: firstFiles(s.options.from, dir, available), File: file, Backends: s.options.Backends,
		Complete: s.options.completion(dir, available, s.ask(ctx, m, dir, trees)), Open: open,
	})
	if err != nil {
		return err
	}
	labels, err := modelconfig.ClassLabels(config, open)
	if err != nil {
		return err
	}
	m.Config = config
	m.Warnings = append(m.Warnings, modelconfig.Unused(config)...)
	m.Labels, err = pack(labels)
	return err
}

// maxLabels bounds a model's class labels, compressed, in bytes. They travel
// with its value in the store, so that gateways have labels and configuration
// at the same moment and from the one place that they watch. The labels of two
// contents, as while one replaces the other, and their configurations stay
// below what a value may hold. The names of 20,000 species fit.
const maxLabels = 320 << 10

func pack(labels map[string][]string) (map[string][]byte, error) {
	packed, total := make(map[string][]byte, len(labels)), 0
	for output, list := range labels {
		packed[output] = modelconfig.PackLabels(list)
		total += len(packed[output])
	}
	if total > maxLabels {
		return nil, problem("the class labels have %d bytes compressed, more than %d: shorten them, or leave label_filename out and look the classes up where they are read", total, maxLabels)
	}
	return packed, nil
}

// versionNumbers gives the version directories, and a warning for each
// directory that looks meant as one and is none.
func versionNumbers(from Files, dir string, entries []fs.DirEntry) (numbers []int64, warnings []string) {
	for _, entry := range entries {
		name := entry.Name()
		if hidden(name) || reserved(name) || !isDir(from, modelfiles.Join(dir, name)) {
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

// configDir is the directory of configurations to choose from.
const configDir = "configs"

// reserved names have a meaning of their own within a model directory.
func reserved(name string) bool {
	return name == configDir || slices.Contains(modelfiles.Shared(), name)
}

func problem(format string, args ...any) error {
	return errs.New(errs.ConfigInvalid, format, args...)
}
