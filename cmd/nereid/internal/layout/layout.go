// Package layout serves model files outside a repository: it links files, and
// directories without versions, into a temporary model repository. It copies
// nothing, so changed files are noticed as in any repository.
package layout

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/onnxheader"
)

// Arranged is what is served for arguments.
type Arranged struct {
	// Repositories are those among the arguments, and one of links to the models among
	// them.
	Repositories []string
	links        *repository // nil without arguments
}

// Arrange finds out what arguments name. Each is a model file, a SavedModel directory, a
// directory of either, a model's directory, a repository or the URL of one, with a model's
// name before it as in name=path or not. The error is of the reason config_invalid. The
// caller calls Remove at the end.
func Arrange(arguments []string) (a Arranged, err error) {
	if len(arguments) == 0 {
		return Arranged{}, nil
	}
	dir, err := os.MkdirTemp("", "nereid-models-")
	if err != nil {
		return Arranged{}, err
	}
	a.links = &repository{dir: dir, found: make(map[string]string), files: make(map[string]string)}
	if a.Repositories, err = a.links.add(arguments); err != nil {
		a.Remove()
	}
	return a, err
}

// Remove removes the links.
func (a *Arranged) Remove() {
	if a.links != nil {
		_ = os.RemoveAll(a.links.dir)
	}
}

// Real returns a text with the paths of links replaced by those of their files.
func (a *Arranged) Real(text string) string {
	if a.links == nil {
		return text
	}
	links := slices.SortedFunc(maps.Keys(a.links.files), func(x, y string) int { return cmp.Compare(len(y), len(x)) })
	for _, link := range links {
		text = strings.ReplaceAll(text, link, a.links.files[link])
	}
	return text
}

// repository is a directory of links.
type repository struct {
	dir   string
	found map[string]string // where each model comes from, by name
	files map[string]string // where each link leads
}

func (r *repository) add(arguments []string) (repositories []string, err error) {
	for _, argument := range arguments {
		if blob.Remote(argument) {
			repositories = append(repositories, argument)
			continue
		}
		name, path := split(argument)
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, invalid("%s is not there: name a model file, a directory of them, or a model repository", path)
		}
		switch {
		case !info.IsDir():
			err = r.file(name, path)
		case name == "" && isRepository(path):
			repositories = append(repositories, path)
		default:
			err = r.directory(name, path)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(r.found) > 0 {
		repositories = append(repositories, r.dir)
	}
	return repositories, nil
}

func invalid(format string, args ...any) error { return errs.New(errs.ConfigInvalid, format, args...) }

// split cuts a model's name off an argument. A path that has a = after a slash has none.
func split(argument string) (name, path string) {
	name, path, named := strings.Cut(argument, "=")
	if !named || name == "" || strings.ContainsAny(name, `/\`) {
		return "", argument
	}
	return name, path
}

// fileNames are the names that backends look for, by the extensions of model files.
func fileNames() map[string]string {
	return map[string]string{
		".onnx": "model.onnx", ".py": "model.py", ".pt": "model.pt", ".pt2": "model.pt2", ".plan": "model.plan", ".xml": "model.xml",
	}
}

// configFile is a model's configuration.
const configFile = "config.pbtxt"

// savedModel is what a directory is called that TensorFlow's backend loads.
const savedModel = "model.savedmodel"

func isSavedModel(dir string) bool { return exists(filepath.Join(dir, "saved_model.pb")) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func isVersion(name string) bool {
	n, err := strconv.ParseUint(name, 10, 63)
	return err == nil && strconv.FormatUint(n, 10) == name
}

// modelFile is the name that a backend looks for where a file, or a SavedModel directory,
// is a model; empty where it is none.
func modelFile(path string, isDir bool) string {
	if isDir {
		if isSavedModel(path) {
			return savedModel
		}
		return ""
	}
	return fileNames()[filepath.Ext(path)]
}

// nameOf is the name of the model in a file or directory: that of the file, without its
// extension, or if that says nothing, as in model.onnx and 1, that of the directory.
func nameOf(path string) string {
	base := filepath.Base(path)
	name := base
	if ext := filepath.Ext(base); fileNames()[ext] != "" || ext == filepath.Ext(savedModel) {
		name = strings.TrimSuffix(base, ext)
	}
	if name == "model" || strings.Trim(name, "0123456789") == "" && name != "" {
		return nameOf(filepath.Dir(path))
	}
	return name
}

// isModel reports whether a directory is a model's, as a repository has it.
func isModel(dir string) bool {
	entries, _ := os.ReadDir(dir)
	versions := slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return isVersion(e.Name()) && isDir(filepath.Join(dir, e.Name())) && !isSavedModel(filepath.Join(dir, e.Name()))
	})
	return versions || exists(filepath.Join(dir, configFile)) && len(models(dir)) == 0
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// isRepository reports whether a directory has a model's directory in Triton's layout, or
// nothing at all: what else is in a repository is a mistake there, of which the registry
// says how to mend it.
func isRepository(dir string) bool {
	if isModel(dir) || isSavedModel(dir) || len(models(dir)) > 0 {
		return false
	}
	entries, _ := os.ReadDir(dir)
	return len(entries) == 0 || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), ".") && isModel(filepath.Join(dir, e.Name()))
	})
}

// models are the model files and SavedModel directories in a directory, by their paths.
func models(dir string) (paths []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); !strings.HasPrefix(e.Name(), ".") && modelFile(path, isDir(path)) != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

// directory adds a directory that is no repository.
func (r *repository) directory(name, dir string) error {
	held := models(dir)
	switch {
	case isSavedModel(dir):
		return r.file(name, dir)
	case isModel(dir):
		return r.link(name, dir, func(model string) error { return r.symlink(dir, model) })
	case slices.ContainsFunc(held, func(path string) bool { return modelFile(path, isDir(path)) == filepath.Base(path) }):
		return r.mount(name, dir)
	case name != "" && len(held) == 1:
		return r.file(name, held[0])
	case name != "":
		return invalid("%s has %d model files, and the name %s is one model's: name one file", dir, len(held), name)
	}
	for _, path := range held {
		if err := r.file("", path); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return invalid("%s cannot be read: %v", dir, err)
	}
	found := len(held)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") || !isDir(path) || isSavedModel(path) || !isModel(path) && len(models(path)) == 0 {
			continue
		}
		found++
		if err := r.directory("", path); err != nil {
			return err
		}
	}
	if found == 0 {
		return invalid("%s has nothing to serve: want model files (%s), SavedModel directories, or a directory for each model", dir, extensions())
	}
	return nil
}

// remedies say what to do about files that hold models and cannot be served as they are.
func remedies() map[string]string {
	return map[string]string{
		".pth": weightsAlone, ".safetensors": weightsAlone, ".ckpt": weightsAlone, ".bin": weightsAlone, ".gguf": weightsAlone,
		".pb": savedModelInstead, ".h5": savedModelInstead, ".keras": savedModelInstead, ".tflite": savedModelInstead,
		".pkl": "load it in a model.py, or convert it to ONNX", ".joblib": "load it in a model.py, or convert it to ONNX",
		".engine": "name TensorRT's engine *.plan", ".trt": "name TensorRT's engine *.plan",
	}
}

const (
	weightsAlone      = "it holds weights without the network: export the model to ONNX, or load it in a model.py"
	savedModelInstead = "save the model as a SavedModel directory, or convert it to ONNX"
)

// remedy says what to name in place of a file.
func remedy(path string) string {
	return cmp.Or(remedies()[filepath.Ext(path)], "name one of "+extensions()+", or a directory")
}

func extensions() string {
	var list []string
	for ext := range fileNames() {
		list = append(list, "*"+ext)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// file adds a model file or a SavedModel directory, with the files that it needs beside it.
func (r *repository) file(name, path string) error {
	as := modelFile(path, isDir(path))
	if as == "" {
		return invalid("%s is no model file: %s", path, remedy(path))
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() && info.Size() == 0 {
		return invalid("%s is empty", path)
	}
	beside, err := needed(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	configured := exists(filepath.Join(dir, configFile)) && len(models(dir)) == 1 // of several it is nobody's
	if !configured && (as == "model.pt" || as == "model.pt2") {
		return invalid("%s does not say what its inputs and outputs are: put a %s that lists them beside it, in a directory that has no other model", path, configFile)
	}
	return r.link(orNameOf(name, path), path, func(model string) error {
		if configured {
			if err := r.accompany(dir, model); err != nil {
				return err
			}
		}
		beside[as] = path
		return r.symlinkAll(beside, filepath.Join(model, "1"))
	})
}

func orNameOf(name, path string) string {
	if name != "" {
		return name
	}
	return nameOf(path)
}

// needed returns the files that a model file needs beside it, by their names there: the
// weights of an ONNX or OpenVINO model, the description of a plan, and what a Python model
// may import.
func needed(path string) (map[string]string, error) {
	files := make(map[string]string)
	dir := filepath.Dir(path)
	switch filepath.Ext(path) {
	case ".plan":
		if description := path + backends.PlanSuffix; exists(description) {
			files["model.plan"+backends.PlanSuffix] = description
		}
	case ".xml":
		if weights := strings.TrimSuffix(path, ".xml") + ".bin"; exists(weights) {
			files["model.bin"] = weights
		}
	case ".py":
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if at := filepath.Join(dir, e.Name()); filepath.Ext(at) == ".py" && at != path && e.Name() != "model.py" {
				files[e.Name()] = at
			}
		}
	case ".onnx":
		return externalData(path)
	}
	return files, nil
}

// externalData returns the files in which an ONNX model has its weights, if it has any.
func externalData(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, invalid("%s cannot be read: %v", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, invalid("%s cannot be read: %v", path, err)
	}
	files := make(map[string]string)
	header, err := onnxheader.Read(f, info.Size())
	if err != nil { // the model's load says what is wrong with it
		return files, nil
	}
	for _, name := range header.External {
		if filepath.IsLocal(name) {
			files[filepath.Clean(name)] = filepath.Join(filepath.Dir(path), name)
		}
	}
	return files, nil
}

// mount adds a directory in which a model's files lie under the names that backends look
// for, with a configuration or without, as KServe mounts them.
func (r *repository) mount(name, dir string) error {
	return r.link(orNameOf(name, dir), dir, func(model string) error {
		if err := r.accompany(dir, model); err != nil {
			return err
		}
		return r.symlink(dir, filepath.Join(model, "1"))
	})
}

// accompany links the files of a directory that are no models into that of a model: the
// configuration, and the labels that it names.
func (r *repository) accompany(dir, model string) error {
	if err := os.MkdirAll(model, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if at := filepath.Join(dir, e.Name()); !isDir(at) && modelFile(at, false) == "" && !strings.HasPrefix(e.Name(), ".") {
			if err := r.symlink(at, filepath.Join(model, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// symlinkAll links files under the names that they get in a directory.
func (r *repository) symlinkAll(files map[string]string, dir string) error {
	for name, at := range files {
		link := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		if err := r.symlink(at, link); err != nil {
			return err
		}
	}
	return nil
}

func (r *repository) symlink(to, link string) error {
	r.files[link] = to
	return os.Symlink(to, link)
}

// link adds a model, whose links fill makes in the directory that it gets.
func (r *repository) link(name, from string, fill func(model string) error) error {
	if name == "" {
		name = nameOf(from)
	}
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return invalid("%q is no name for the model in %s: name it as in NAME=%s", name, from, from)
	}
	if other, known := r.found[name]; known {
		return invalid("%s and %s would both be served as %q: name one of them as in NAME=%s", other, from, name, from)
	}
	r.found[name], r.files[filepath.Join(r.dir, name)] = from, from
	if err := fill(filepath.Join(r.dir, name)); err != nil {
		return fmt.Errorf("link the model %q: %w", name, err)
	}
	return nil
}
