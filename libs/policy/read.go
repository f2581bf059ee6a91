package policy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nereid-serving/nereid/libs/diagnostics"
	"github.com/nereid-serving/nereid/libs/errs"
)

// MaxBytes is the most that a policy may have: it travels in one value of the
// control plane's store.
const MaxBytes = 512 << 10

// Finding is an error in a policy: see [diagnostics.Finding].
type Finding = diagnostics.Finding

// ReadFile reads the text of a policy. From a file that is too long it reads only as much as
// [Read] needs to say so. The error is of the reason policy_invalid.
func ReadFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err == nil {
		defer func() { _ = f.Close() }()
		var text []byte
		if text, err = io.ReadAll(io.LimitReader(f, MaxBytes+1)); err == nil {
			return text, nil
		}
	}
	return nil, errs.Wrap(errs.PolicyInvalid, err, "the policy cannot be read: %v", err)
}

// Read reads a policy. It returns findings, in the order of their lines, or a policy.
func Read(text []byte) (*Policy, []Finding) {
	r := &reader{}
	if len(text) > MaxBytes {
		r.add(nil, "", fmt.Sprintf("the policy has more than %d bytes", MaxBytes), "leave out what the other rules say already")
		return nil, r.findings
	}
	if len(bytes.TrimSpace(text)) == 0 {
		r.add(nil, "", "the policy is empty", "start with  version: 1")
		return nil, r.findings
	}
	var root, more yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&root); {
	case errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0:
		r.add(nil, "", "the policy is empty", "start with  version: 1")
		return nil, r.findings
	case err != nil:
		r.broken(err)
		return nil, r.findings
	}
	if err := decoder.Decode(&more); err == nil {
		r.add(&more, "", "the file has a second document", "write one document, without ---")
		return nil, r.findings
	} else if !errors.Is(err, io.EOF) {
		r.broken(err)
		return nil, r.findings
	}
	r.root = root.Content[0]
	var d document
	if r.strict(r.root, reflect.TypeFor[document](), ""); len(r.findings) == 0 {
		r.broken(r.root.Decode(&d))
	}
	var p *Policy
	if len(r.findings) == 0 {
		p = r.compile(&d)
	}
	if len(r.findings) == 0 {
		r.test(p, d.Tests)
	}
	if len(r.findings) > 0 {
		slices.SortStableFunc(r.findings, func(a, b Finding) int { return cmp.Compare(a.Line, b.Line) })
		return nil, r.findings
	}
	sum := sha256.Sum256(text)
	p.Digest = hex.EncodeToString(sum[:8])
	return p, nil
}

// maxValues is how many values a policy may have, those counted each time that are
// named by an alias.
const maxValues = 200_000

// Invalid is the error of a file that has findings, of the reason policy_invalid. It
// describes so many of them, each in a line.
func Invalid(file string, findings []Finding, most int) error {
	var b strings.Builder
	for i, f := range findings {
		if i == most {
			fmt.Fprintf(&b, "\n… and %d more", len(findings)-i)
			break
		}
		b.WriteString("\n" + Describe(file, f))
	}
	return errs.New(errs.PolicyInvalid, "the policy is not valid:%s", b.String())
}

// Describe formats a finding for people: position, message and fix.
func Describe(file string, f Finding) string {
	text := fmt.Sprintf("%s:%d:%d: %s", file, f.Line, f.Column, f.Message)
	if f.Field != "" && !strings.Contains(f.Message, f.Field) {
		text = fmt.Sprintf("%s:%d:%d: %s: %s", file, f.Line, f.Column, f.Field, f.Message)
	}
	if f.Fix != "" {
		text += "; " + f.Fix
	}
	return text
}

// reader collects what is wrong with a policy.
type reader struct {
	root     *yaml.Node
	values   int // that were read
	compared int // bytes, to find the names that were meant
	findings []Finding
}

// add adds a finding at a node, or at the beginning.
func (r *reader) add(at *yaml.Node, field, message, fix string) {
	f := Finding{Field: field, Line: 1, Column: 1, Message: message, Fix: fix}
	if at != nil {
		f.Line, f.Column = at.Line, at.Column
	}
	r.findings = append(r.findings, f)
}

// report adds a finding about the field of a path such as tenants, acme, tier.
func (r *reader) report(path []any, fix, message string, args ...any) {
	r.add(r.find(path), field(path), fmt.Sprintf(message, args...), fix)
}

// broken adds an error of the YAML library, which starts with a line.
func (r *reader) broken(err error) {
	if err == nil {
		return
	}
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	f := Finding{Line: 1, Column: 1, Message: message}
	if line, rest, ok := strings.Cut(strings.TrimPrefix(message, "line "), ": "); ok {
		if n, err := strconv.Atoi(line); err == nil {
			f.Line, f.Message = max(n, 1), rest
		}
	}
	r.findings = append(r.findings, f)
}

// find returns the node of a path, or the last one on its way that is there.
func (r *reader) find(path []any) *yaml.Node {
	at := r.root
	for _, part := range path {
		at = resolved(at)
		var next *yaml.Node
		switch part := part.(type) {
		case int:
			if part < len(at.Content) {
				next = at.Content[part]
			}
		case string:
			for i := 0; i+1 < len(at.Content); i += 2 {
				if at.Content[i].Value == part {
					next = at.Content[i+1]
				}
			}
		}
		if next == nil {
			return at
		}
		at = next
	}
	return at
}

// resolved is the node that another is an alias of, or the node.
func resolved(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// field writes a path as messages name it.
func field(path []any) string {
	var b strings.Builder
	for _, part := range path {
		switch part := part.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", part)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(part)
		}
	}
	return b.String()
}

// strict adds a finding for each name that a type does not have, and for each value of
// another kind.
func (r *reader) strict(n *yaml.Node, t reflect.Type, at string) {
	n = resolved(n)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if r.values++; r.values == maxValues {
		r.add(n, at, fmt.Sprintf("the policy has more than %d values", maxValues), "write fewer aliases")
	}
	if r.values >= maxValues {
		return
	}
	if n.ShortTag() == "!!null" {
		r.add(n, at, fmt.Sprintf("%s has no value", cmp.Or(at, "the policy")), "give it one, or leave it out")
		return
	}
	switch {
	case reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()):
		r.scalar(n, t, at)
	case t.Kind() == reflect.Slice:
		if r.expect(n, yaml.SequenceNode, at, "a list") {
			for i, item := range n.Content {
				r.strict(item, t.Elem(), fmt.Sprintf("%s[%d]", at, i))
			}
		}
	case t.Kind() == reflect.Map:
		if r.expect(n, yaml.MappingNode, at, "names and what they stand for") {
			r.unique(n, at)
			for i := 0; i+1 < len(n.Content); i += 2 {
				r.strict(n.Content[i+1], t.Elem(), join(at, n.Content[i].Value))
			}
		}
	case t.Kind() == reflect.Struct:
		if r.expect(n, yaml.MappingNode, at, "fields") {
			r.strictFields(n, t, at)
		}
	default:
		r.scalar(n, t, at)
	}
}

// scalar adds a finding for a value that cannot be read as one of a type.
func (r *reader) scalar(n *yaml.Node, t reflect.Type, at string) {
	if !r.expect(n, yaml.ScalarNode, at, "a value") {
		return
	}
	if t.Kind() == reflect.String && n.Value == "" && !strings.HasPrefix(at, "tests[") {
		r.add(n, at, at+" is empty", "give it a value, or leave it out")
		return
	}
	err := n.Decode(reflect.New(t).Interface())
	var mismatch *yaml.TypeError
	whole := t.Kind() == reflect.Int || t.Kind() == reflect.Int64 || t.Kind() == reflect.Uint64
	custom := reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]())
	switch {
	case errors.As(err, &mismatch), whole && !custom && n.ShortTag() != "!!int": // the library cuts 1.5 to 1
		r.add(n, at, fmt.Sprintf("want %s, got %q", nounOf(t), n.Value), "")
	case err != nil:
		r.add(n, at, err.Error(), "")
	}
}

// nounOf says what values of a type are.
func nounOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "a text"
}

func (r *reader) strictFields(n *yaml.Node, t reflect.Type, at string) {
	r.unique(n, at)
	known := fieldsOf(t)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		if name.Value == "<<" && name.Tag == "!!merge" {
			r.add(name, at, "merge keys are not taken", "write the fields out")
			continue
		}
		if of, ok := known[name.Value]; ok {
			r.strict(n.Content[i+1], of, join(at, name.Value))
			continue
		}
		where := at
		if where == "" {
			where = "a policy"
		}
		r.add(name, at, fmt.Sprintf("unknown field %q in %s", name.Value, where), nearest(r, name.Value, known))
	}
}

// unique adds a finding for each name that stands twice.
func (r *reader) unique(n *yaml.Node, at string) {
	lines := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		if line, twice := lines[name.Value]; twice {
			r.add(name, at, fmt.Sprintf("%q stands in line %d, too", name.Value, line), "keep one of the two")
		}
		lines[name.Value] = name.Line
	}
}

func (r *reader) expect(n *yaml.Node, kind yaml.Kind, at, what string) bool {
	if n.Kind == kind {
		return true
	}
	if at == "" {
		at = "the policy"
	}
	r.add(n, at, fmt.Sprintf("%s must be %s", at, what), "")
	return false
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// fieldsOf returns the types of a struct's fields by their names in YAML.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" {
			fields[name] = f.Type
		}
	}
	return fields
}

// maxCompared bounds how many bytes are compared to find the names that were meant, in all
// of a policy: thousands of wrong names among thousands of others would take minutes.
const maxCompared = 1 << 25

// sortedAs is how many bytes a name counts as that is sorted among others.
const sortedAs = 64

// nearest says which of the names was probably meant, or which there are.
func nearest[V any](r *reader, name string, known map[string]V) string {
	if r.compared += len(known) * sortedAs; r.compared > maxCompared {
		return ""
	}
	names := sorted(known)
	best, least := "", max(2, len(name)/3)+1
	for _, candidate := range names {
		if r.compared += len(name) * len(candidate); r.compared > maxCompared {
			break
		}
		if d := diagnostics.Distance(name, candidate); d < least {
			best, least = candidate, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("did you mean %q?", best)
	case len(names) == 0:
		return "there are none"
	case len(names) > 20:
		names = append(names[:20], "…")
	}
	return "there are " + strings.Join(names, ", ")
}
