package repo

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/libs/onnxheader"
)

const (
	configFile = "config.pbtxt"
	// givenFile stands for the file in messages about a configuration that was
	// not read from one.
	givenFile = "config override"
)

// Options are how repositories and their models' configurations are read.
type Options struct {
	// Namespacing has models of one name in several repositories distinguished by
	// their repositories; without it they have one name too many.
	Namespacing bool
	// ConfigName chooses configs/NAME.pbtxt of models that have it, instead of
	// config.pbtxt; it may be empty.
	ConfigName string
	// Strict takes nothing from model files: config.pbtxt must have it all.
	Strict bool
	// Ask has models complete their own configurations; nil has no code run, so
	// that these stay as they are.
	Ask Ask
	// Backends are those that there are; nil is not to know.
	Backends []string
	// MaxBatchSize is for models that can batch and do not set up to what
	// size; 0 has them not batch.
	MaxBatchSize int32
	// Shallow opens the files of versions without reading them, so that there
	// are no digests.
	Shallow bool
	// FileQuietPeriod is for how long files must have been left alone to count as
	// settled; 0 has them always settled.
	FileQuietPeriod time.Duration

	// ObjectQuietPeriod is for how long the objects of a model in a store must stay as they
	// are before they count as all there: see [Scanner.Scan].
	ObjectQuietPeriod time.Duration
	// Stores opens repositories in object stores; it may be nil if there are
	// none.
	Stores *blob.Stores

	from Files // set by New
}

// file names the configuration's file, relative to the model's directory.
func (o Options) file(dir string) string {
	if o.ConfigName == "" {
		return configFile
	}
	named := path.Join(configDir, o.ConfigName+".pbtxt")
	if _, err := o.from.Stat(modelfiles.Join(dir, named)); err != nil && errors.Is(err, fs.ErrNotExist) {
		return configFile
	}
	return named
}

// Locate sets the places of problems in the configuration of the model in dir.
func (s *Scanner) Locate(dir string, problems modelconfig.Problems) {
	file := s.options.file(dir)
	if text, err := s.options.text(dir, file); err == nil {
		modelconfig.Locate(text, file, problems)
	}
}

// WithUnknownSteps returns the problems of the model in dir, and with them the steps of an
// ensemble whose models are unknown.
func (s *Scanner) WithUnknownSteps(dir, name string, problems modelconfig.Problems, known func(namespace, model string) bool) modelconfig.Problems {
	file := s.options.file(dir)
	text, err := s.options.text(dir, file)
	if err != nil { // it is a problem already
		return problems
	}
	return modelconfig.WithUnknownSteps(problems, text, file, name, known)
}

// text reads the configuration. Without a file it is empty, if what it would
// say may come from the model file.
func (o Options) text(dir, file string) ([]byte, error) {
	path := modelfiles.Join(dir, file)
	if _, err := o.from.Lstat(path); errors.Is(err, fs.ErrNotExist) && !o.Strict {
		return nil, nil
	}
	return readConfig(o.from, path)
}

func (o Options) completion(dir string, available []int64, ask func(int64, []byte, bool) ([]byte, error)) *modelconfig.Completion {
	return &modelconfig.Completion{
		Versions:     available,
		Ask:          ask,
		Strict:       o.Strict,
		MaxBatchSize: o.MaxBatchSize,
		Header: func(d backends.Descriptor, version int64, filename string) (*onnxheader.Header, error) {
			return ReadHeader(o.from, d, modelfiles.Join(dir, strconv.FormatInt(version, 10), filename))
		},
	}
}

// ReadHeader reads the header of a backend's model file, or of the one in a
// directory of that name. The backend has headers.
func ReadHeader(from Files, d backends.Descriptor, location string) (*onnxheader.Header, error) {
	if isDir(from, location) {
		location = modelfiles.Join(location, d.File())
	}
	file, err := from.Open(location + d.HeaderSuffix)
	if errors.Is(err, fs.ErrNotExist) && d.HeaderSuffix != "" {
		if _, err := from.Stat(location); err == nil {
			return nil, fmt.Errorf("there is no %s beside it, which tells for which GPU it was built: build it with examples/tensorrt/build.py", path.Base(location)+d.HeaderSuffix)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, absent{otherModel(from, modelfiles.Parent(location), path.Ext(d.File()))}
	}
	if err != nil {
		return nil, cause(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, cause(err)
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	h, err := d.Header(file, info.Size())
	if err != nil {
		return nil, cause(err)
	}
	return h, nil
}

// absent is the error of a model file that does not exist.
type absent struct {
	other string // the one model file beside it; may be empty
}

func (e absent) Error() string {
	if e.other == "" {
		return "the model file does not exist"
	}
	return "the model file does not exist, but '" + e.other + "' does"
}

func (absent) Is(target error) bool { return target == fs.ErrNotExist }

// otherModel finds the one file of a directory with the extension; empty if there is none or
// several.
func otherModel(from Files, dir, extension string) (name string) {
	entries, err := from.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, entry := range entries {
		if path.Ext(entry.Name()) != extension {
			continue
		}
		if name != "" {
			return ""
		}
		name = entry.Name()
	}
	return name
}

// opener opens the regular files below a model's directory, and takes note of
// how recent they are.
func (s *reader) opener(dir string) func(string) (io.ReadCloser, error) {
	from := s.options.from
	return func(name string) (io.ReadCloser, error) {
		path := modelfiles.Join(dir, name)
		info, err := from.Stat(path)
		if err == nil && !info.Mode().IsRegular() {
			return nil, errors.New("it is not a regular file")
		}
		if err != nil {
			return nil, cause(err)
		}
		s.observed.note(info.ModTime())
		file, err := from.Open(path)
		if err != nil {
			return nil, cause(err)
		}
		return file, nil
	}
}

// problemsOf gives the problems behind an error, which is one itself if it
// has none.
func problemsOf(err error) modelconfig.Problems {
	if problems := modelconfig.ProblemsOf(err); len(problems) > 0 {
		return problems
	}
	e := errs.From(err)
	return modelconfig.Problems{{Reason: e.Reason, Message: cmp.Or(e.Msg, err.Error())}}
}

// firstFiles lists the version directory that comes first by spelling, which
// is where the format looks for the model file that implies the backend.
func firstFiles(from Files, dir string, available []int64) []string {
	if len(available) == 0 {
		return nil
	}
	names := make([]string, len(available))
	for i, number := range available {
		names[i] = strconv.FormatInt(number, 10)
	}
	entries, err := from.ReadDir(modelfiles.Join(dir, slices.Min(names)))
	if err != nil {
		return nil // the version's own problem shows it
	}
	files := make([]string, len(entries))
	for i, entry := range entries {
		files[i] = entry.Name()
	}
	return files
}

// readConfig reads at most one byte more than a configuration may have, so
// that its length is judged where the limit is known.
func readConfig(from Files, path string) ([]byte, error) {
	info, err := from.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, problem("%s does not exist: write one that lists input and output, or start without --disable-auto-complete-config", path)
	}
	if err == nil && !info.Mode().IsRegular() {
		return nil, problem("%s is not a regular file", path)
	}
	if err != nil {
		return nil, problem("%s cannot be read: %v", path, cause(err))
	}
	file, err := from.Open(path)
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
