package modelconfig_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// What testdata/fields.tsv says of a field, besides served.
const (
	refused = "refused"
	checked = "checked" // a part of a refused section
)

type fieldRow struct{ path, state, text string }

func fieldRows(t *testing.T) []fieldRow {
	t.Helper()
	table, err := os.ReadFile(filepath.Join("testdata", "fields.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []fieldRow
	for line := range strings.Lines(string(table)) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(cells) != 3 || !strings.Contains("served hint refused checked", cells[1]) {
			t.Fatalf("row %q", line)
		}
		rows = append(rows, fieldRow{cells[0], cells[1], cells[2]})
	}
	return rows
}

// TestReferenceHasEveryField holds the table, and the page that is made of
// it, against the format.
func TestReferenceHasEveryField(t *testing.T) {
	var want, got []string
	fieldPaths("", new(inference.ModelConfig).ProtoReflect().Descriptor(), &want)
	for _, row := range fieldRows(t) {
		got = append(got, row.path)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-fields +table):\n%s", diff)
	}
	golden(t, filepath.Join("..", "..", "docs", "reference", "model-config.md"), page(t))
}

func fieldPaths(prefix string, desc protoreflect.MessageDescriptor, paths *[]string) {
	for i := range desc.Fields().Len() {
		fd := desc.Fields().Get(i)
		path := prefix + fd.TextName()
		*paths = append(*paths, path)
		if inner := messageOf(fd); inner != nil {
			fieldPaths(path+".", inner, paths)
		}
	}
}

func messageOf(fd protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if fd.IsMap() {
		return fd.MapValue().Message()
	}
	return fd.Message()
}

func page(t *testing.T) string {
	t.Helper()
	head, err := os.ReadFile(filepath.Join("testdata", "fields.md"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("<!-- Written from libs/modelconfig/testdata/fields.{md,tsv} by the tests there, with -args -update. Do not edit. -->\n")
	b.Write(head)
	for _, row := range fieldRows(t) {
		b.WriteString("| `" + row.path + "` | " + row.state + " | " + row.text + " |\n")
	}
	return b.String()
}

// TestReferenceSaysWhatIsRefused sets each field alone and looks whether the
// configuration is refused as unsupported.
func TestReferenceSaysWhatIsRefused(t *testing.T) {
	index := regexp.MustCompile(`\[[^]]*\]`)
	for _, row := range fieldRows(t) {
		t.Run(row.path, func(t *testing.T) {
			config := &inference.ModelConfig{Name: "m", Backend: "onnxruntime"}
			set(config.ProtoReflect(), strings.Split(row.path, "."))
			modelconfig.Normalize(config, modelconfig.Directory{Name: "m"})
			at := ""
			for _, p := range modelconfig.ProblemsOf(modelconfig.Validate(config, "m")) {
				if p.Reason == errs.Unsupported {
					at = index.ReplaceAllString(p.Field, "")
				}
			}
			switch row.state {
			case refused:
				if at != row.path {
					t.Errorf("refused at %q", at)
				}
			case checked:
				if at == "" || !strings.HasPrefix(row.path, at+".") {
					t.Errorf("refused at %q, want a section around", at)
				}
			default:
				if at != "" {
					t.Errorf("refused at %q", at)
				}
			}
		})
	}
}

// set gives the field of a path, and those on the way, a value that is not
// the default.
func set(m protoreflect.Message, path []string) {
	fd := m.Descriptor().Fields().ByTextName(path[0])
	var value protoreflect.Value
	switch {
	case fd.IsList():
		list := m.Mutable(fd).List()
		if fd.Message() == nil {
			list.Append(scalar(fd))
			return
		}
		value = list.AppendMutable()
	case fd.IsMap():
		key := scalar(fd.MapKey()).MapKey()
		if fd.MapValue().Message() == nil {
			m.Mutable(fd).Map().Set(key, scalar(fd.MapValue()))
			return
		}
		value = m.Mutable(fd).Map().Mutable(key)
	case fd.Message() == nil:
		m.Set(fd, scalar(fd))
		return
	default:
		value = m.Mutable(fd)
	}
	if len(path) > 1 {
		set(value.Message(), path[1:])
	}
}

func scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("x")
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(fd.Enum().Values().Get(fd.Enum().Values().Len() - 1).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(1)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1)
	}
	return protoreflect.ValueOfFloat64(1)
}
