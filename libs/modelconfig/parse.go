package modelconfig

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

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
	// Backends are those that there are, for models that lack what only their
	// backend could tell; nil is not to know.
	Backends []string
	// Complete takes from the model file what the configuration leaves out;
	// nil is to take nothing, so that inputs and outputs must be written down.
	Complete *Completion
	// Open opens a file by its path relative to the model's directory. The
	// files that a configuration names besides the model's own are checked
	// through it; nil leaves them unchecked.
	Open func(path string) (io.ReadCloser, error)
}

// Load reads the text of a model's config.pbtxt, fills in what it leaves out
// and checks it. Its error is an *errs.Error that tells every problem, with
// the lines where they stand; [ProblemsOf] gives them one by one.
func Load(text []byte, dir Directory) (*inference.ModelConfig, error) {
	read := parse(string(text))
	problems := read.problems
	if read.config != nil {
		problems = append(problems, read.walked.consequences(fill(read.config, dir))...)
	}
	if len(problems) == 0 {
		return read.config, nil
	}
	locate(problems, string(text))
	for i := range problems {
		problems[i].File = cmp.Or(problems[i].File, dir.File)
	}
	slices.SortStableFunc(problems, byLine)
	return nil, problems.AsError(dir.Name)
}

// byLine orders problems as the text goes. What stands on no line is often
// missing because of what does, so it comes last.
func byLine(a, b Problem) int {
	if a.Line == 0 || b.Line == 0 {
		return b.Line - a.Line
	}
	return a.Line - b.Line
}

// fill completes, normalises and checks a configuration.
func fill(config *inference.ModelConfig, dir Directory) Problems {
	normaliseName(config, dir)
	completion, judge := new(report), true
	if completion.model = config.GetName(); dir.Complete != nil {
		judge = completion.complete(config, dir.Complete)
	}
	Normalise(config, dir)
	problems := validate(config, dir.Name)
	if dir.Open != nil {
		problems = append(problems, files(config, dir.Open)...)
	}
	if judge {
		problems = append(problems, lacking(config, dir)...)
	}
	return append(completion.problems, problems...)
}

// lacking reports what neither the configuration nor the model file gave. If
// there is no such backend, that is why.
func lacking(config *inference.ModelConfig, dir Directory) Problems {
	problems := missing(config, dir.Complete != nil)
	backend := config.GetBackend()
	if len(problems) > 0 && backend != "" && dir.Backends != nil && !slices.Contains(dir.Backends, backend) {
		return Problems{UnknownBackend(backend, dir.Backends)}
	}
	return problems
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
	// config is nil if the text cannot be read at all.
	config   *inference.ModelConfig
	problems Problems
	// walked is nil where the text is as it should be.
	walked *walker
}

func parse(text string) reading {
	if len(text) > MaxText {
		return reading{problems: Problems{{
			Reason:  errs.ConfigInvalid,
			Message: fmt.Sprintf("the configuration has %d bytes, more than the %d that are allowed", len(text), MaxText),
			Fix:     "move labels, warm-up data and the like to files of their own",
		}}}
	}
	config := new(inference.ModelConfig)
	err := prototext.Unmarshal([]byte(text), config)
	if err == nil {
		return reading{config: config}
	}
	walked := walk(text, config.ProtoReflect().Descriptor())
	problems := walked.wrote(text)
	for _, without := range walked.readings(text) {
		proto.Reset(config)
		if err = prototext.Unmarshal([]byte(without), config); err == nil {
			return reading{config, problems, walked}
		}
	}
	if p := syntaxProblem(text, err); !problems.at(p.Line, p.Column) {
		problems = append(problems, p)
	}
	return reading{problems: problems}
}

// at reports whether a problem stands at that place.
func (ps Problems) at(line, column int) bool {
	for _, p := range ps {
		if p.Line == line && p.Column == column {
			return true
		}
	}
	return false
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

// syntaxFix recognises the usual slips.
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
func locate(problems Problems, text string) {
	desc := new(inference.ModelConfig).ProtoReflect().Descriptor()
	places := walk(text, desc).places
	for i := range problems {
		p := &problems[i]
		if p.File != "" {
			continue // it is not about the text
		}
		for field := p.Field; p.Line == 0 && field != ""; field = parent(field) {
			if offset, ok := places[field]; ok {
				p.Line, p.Column = position(text, offset)
			}
		}
	}
}

// parent is the path around a field: input[0] of input[0].dims, input of
// input[0], nothing of input.
func parent(field string) string {
	return field[:max(0, strings.LastIndexAny(field, ".["))]
}
