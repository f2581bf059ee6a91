package modelconfig

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/backends"
	"github.com/nereid-serving/nereid/libs/diagnostics"
	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// MaxText is the most bytes of a config.pbtxt. A larger one would not fit
// into a value of the control plane either.
const MaxText = 256 << 10

// Directory is what a model's directory says about its configuration.
type Directory struct {
	// Name is the directory's name, which is the model's.
	Name string
	// Files are the names in the first version directory, from which a
	// missing backend is derived; they may be nil.
	Files []string
	// File is the path of the configuration's text, for the problems' places;
	// it may be empty.
	File string
	// Backends are those that there are; nil is those that are built in, and any that
	// workers may find in their backend directories. A model of another
	// may lack what only its backend could tell, and fails when it is loaded.
	Backends []string
	// Complete takes from the model file what the configuration leaves out;
	// nil is to take nothing, so that inputs and outputs must be written down.
	Complete *Completion
	// Open opens a file by its path relative to the model's directory. The
	// files that a configuration names besides the model's own are checked
	// through it; nil leaves them unchecked.
	Open func(path string) (io.ReadCloser, error)
}

// backends are those that there are.
func (d Directory) backends() []string {
	if d.Backends == nil {
		return backends.BuiltIn()
	}
	return d.Backends
}

// pythonBased reports whether there is a backend whose code is in a backend directory.
func (d Directory) pythonBased(backend string) bool {
	return slices.Contains(d.Backends, backend) && !backends.Get(backend).BuiltIn
}

// asks reports whether workers have models of a backend complete their
// configurations.
func (d Directory) asks(backend string) bool {
	if known := backends.Get(backend); known.BuiltIn {
		return (known.CompletesItself || known.CompletesTensors) && slices.Contains(d.backends(), backend)
	}
	return backend != "" && (d.Backends == nil || slices.Contains(d.Backends, backend))
}

// Load reads the text of a model's config.pbtxt, completes it and validates it. Its error is an
// *errs.Error with every problem and its line; [ProblemsOf] gives them one by one. A text that
// breaks the format is checked as it was probably meant.
func Load(text []byte, dir Directory) (*inference.ModelConfig, error) {
	read := parse(string(text))
	problems := read.problems
	if read.config != nil {
		problems = append(problems, read.check(dir)...)
	}
	if len(problems) == 0 {
		return read.config, nil
	}
	read.locate(problems)
	for i := range problems {
		problems[i].File = cmp.Or(problems[i].File, dir.File)
	}
	slices.SortStableFunc(problems, byLine)
	return nil, problems.AsError(dir.Name)
}

// Locate sets the positions of problems in a configuration whose text is in file.
func Locate(text []byte, file string, problems Problems) {
	parse(string(text)).locate(problems)
	for i := range problems {
		problems[i].File = cmp.Or(problems[i].File, file)
	}
}

// check completes, normalizes and checks a configuration that could be read. One
// that was repaired is not loaded, which would compare it with the model file, so
// it is compared here.
func (r *reading) check(dir Directory) Problems {
	problems := fill(r.config, dir)
	if r.found == nil {
		return problems
	}
	problems = slices.DeleteFunc(problems, func(p Problem) bool { return r.found.Dropped(p.Field) })
	if len(problems) == 0 && r.repaired && dir.Complete != nil {
		problems = compareVersions(r.config, dir.Complete)
	}
	return problems
}

// byLine orders problems as the text goes. What stands on no line is often
// missing because of what does, so it comes last.
func byLine(a, b Problem) int {
	if a.Line == 0 || b.Line == 0 {
		return b.Line - a.Line
	}
	return a.Line - b.Line
}

// fill completes, normalizes and checks a configuration.
func fill(config *inference.ModelConfig, dir Directory) Problems {
	normalizeName(config, dir)
	completion, judge := new(report), true
	completes := dir.Complete != nil && !dir.Complete.Strict
	if completion.model = config.GetName(); completes {
		judge = completion.complete(config, dir)
	}
	Normalize(config, dir)
	problems := validate(config, dir.Name)
	for i := range problems { // it broke no rule before
		problems[i].File = completion.answered
	}
	if dir.Open != nil {
		problems = append(problems, files(config, dir.Open)...)
	}
	if judge {
		problems = append(problems, lacking(config, dir, completes)...)
	}
	return append(completion.problems, problems...)
}

// lacking reports what neither the configuration nor the model file gave. A
// backend that there is not could give it, so that the load fails instead; a
// configuration that nothing completes lacks it all the same.
func lacking(config *inference.ModelConfig, dir Directory, completed bool) Problems {
	problems := missing(config, completed)
	there, backend := dir.backends(), config.GetBackend()
	switch {
	case len(problems) == 0 || backend == "":
		return problems
	case dir.asks(backend) && (completed || !backends.Get(backend).CompletesTensors):
		return nil // a model may have none, as in Triton
	case slices.Contains(there, backend):
		return problems
	case completed:
		return nil
	}
	return Problems{UnknownBackend(backend, there)}
}

// Parse reads the text of a config.pbtxt and changes nothing about it. Its
// error is as [Load]'s.
func Parse(text []byte) (*inference.ModelConfig, error) {
	read := parse(string(text))
	if len(read.problems) > 0 {
		return nil, read.problems.AsError(read.config.GetName())
	}
	return read.config, nil
}

// reading is a text as far as it could be read.
type reading struct {
	text string
	// config is nil if the text cannot be read at all.
	config   *inference.ModelConfig
	problems Problems
	// found is nil where the text is as it should be.
	found *diagnostics.Text
	// repaired says that no field of the format was left out to read the rest.
	repaired bool
}

func parse(text string) *reading {
	r := &reading{text: text}
	if len(text) > MaxText {
		r.problems = Problems{{
			Reason:  errs.ConfigInvalid,
			Message: fmt.Sprintf("the configuration has %d bytes, more than the %d that are allowed", len(text), MaxText),
			Fix:     "move labels, warm-up data and the like to files of their own",
		}}
		return r
	}
	config := new(inference.ModelConfig)
	err := prototext.Unmarshal([]byte(text), config)
	if err == nil {
		r.config = config
		return r
	}
	r.found = diagnose(text)
	for _, f := range r.found.Findings {
		r.problems = append(r.problems, Problem{
			Reason: errs.ConfigInvalid, Field: f.Field, Line: f.Line, Column: f.Column, Message: f.Message, Fix: f.Fix,
		})
	}
	repaired, without := r.found.Repaired()
	for _, readable := range []string{repaired, without} {
		proto.Reset(config)
		if err = prototext.Unmarshal([]byte(readable), config); err == nil {
			r.config, r.repaired = config, readable == repaired && !r.found.AnyDropped()
			return r
		}
	}
	p := syntaxProblem(text, err)
	if !slices.ContainsFunc(r.problems, func(other Problem) bool { return other.Line == p.Line && other.Column == p.Column }) {
		r.problems = append(r.problems, p)
	}
	return r
}

func diagnose(text string) *diagnostics.Text {
	return diagnostics.Read(text, new(inference.ModelConfig).ProtoReflect().Descriptor(), dictionary())
}

// syntaxProblem turns the stock parser's error into a problem. Of its text
// only "(line a:b)" is dependable, so that the rest is passed on as it is.
func syntaxProblem(text string, err error) Problem {
	message := strings.ReplaceAll(err.Error(), "\u00a0", " ")
	p := Problem{Reason: errs.ConfigInvalid, Message: strings.TrimPrefix(message, "proto: ")}
	if i := strings.Index(message, "(line "); i >= 0 {
		if n, _ := fmt.Sscanf(message[i:], "(line %d:%d)", &p.Line, &p.Column); n == 2 {
			_, rest, _ := strings.Cut(message[i:], ")")
			p.Message = strings.TrimSpace(strings.TrimLeft(rest, ": "))
		}
	}
	p.Fix = syntaxFix(text, p.Line, p.Message)
	return p
}

// syntaxFix recognizes the usual slips.
func syntaxFix(text string, line int, message string) string {
	if strings.HasPrefix(text, "\ufeff") {
		return "save the file as UTF-8 without a byte order mark"
	}
	if strings.Contains(message, "unexpected EOF") {
		return "close every { and [ that is open"
	}
	if strings.Contains(message, "in string") {
		return "close the quotes in the line where they open"
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return "config.pbtxt is protobuf text, not JSON: write  name: \"m\"  without outer braces"
	}
	lines := strings.Split(text, "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	for _, mark := range []string{"<<<<<<<", "=======", ">>>>>>>"} {
		if strings.HasPrefix(lines[line-1], mark) {
			return "choose between the two sides of the merge, and remove its marks"
		}
	}
	switch strings.TrimPrefix(message, "invalid field name: ") {
	case "}", "]", ">":
		return "remove it; nothing is open here"
	case ",", ";":
		return "write one separator, or none"
	}
	return ""
}

// locate fills in where the problems' fields stand, or the nearest field
// around one that is not written.
func (r *reading) locate(problems Problems) {
	if r.found == nil {
		r.found = diagnose(r.text)
	}
	for i := range problems {
		if p := &problems[i]; p.File == "" && p.Line == 0 {
			p.Line, p.Column, _ = r.found.Position(p.Field)
		}
	}
}
