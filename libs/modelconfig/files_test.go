package modelconfig_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

func TestReadLabels(t *testing.T) {
	tests := []struct {
		name, text string
		want       []string
	}{
		{"none", "", nil},
		{"one without an end", "cat", []string{"cat"}},
		{"lines", "cat\ndog\n", []string{"cat", "dog"}},
		{"line ends of Windows", "cat\r\ndog\r\n", []string{"cat\r", "dog\r"}},
		{"no UTF-8", "a\n\xff\xfe\nlast", []string{"a", "\xff\xfe", "last"}},
		{"empty lines keep their place", "\ncat\n\n", []string{"", "cat", ""}},
		{"blanks are the label's", " cat \tx\n", []string{" cat \tx"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := modelconfig.ReadLabels(strings.NewReader(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLabelsThatCannotBeRead(t *testing.T) {
	broken := errors.New("broken")
	for want, r := range map[string]io.Reader{
		"more than 2097152 bytes": bytes.NewReader(make([]byte, modelconfig.MaxLabels+1)),
		"broken":                  iotest.ErrReader(broken),
	} {
		if _, err := modelconfig.ReadLabels(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
}

func FuzzReadLabels(f *testing.F) {
	f.Add([]byte("cat\ndog\r\n\n"))
	f.Add([]byte("\xff\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		labels, err := modelconfig.ReadLabels(bytes.NewReader(text))
		if err != nil {
			return
		}
		for _, l := range labels {
			if strings.Contains(l, "\n") {
				t.Errorf("label %q", l)
			}
		}
		back, err := modelconfig.UnpackLabels(modelconfig.PackLabels(labels))
		if err != nil || !slices.Equal(back, labels) {
			t.Errorf("%q packed and unpacked is %q, %v", labels, back, err)
		}
		lines := bytes.Count(text, []byte("\n"))
		if len(text) > 0 && text[len(text)-1] != '\n' {
			lines++
		}
		if len(labels) != lines {
			t.Errorf("%d labels in %d lines", len(labels), lines)
		}
	})
}

// opened opens files of a tree.
func opened(tree fstest.MapFS) func(string) (io.ReadCloser, error) {
	return func(name string) (io.ReadCloser, error) { return tree.Open(name) }
}

func TestFilesThatAreNamedAreChecked(t *testing.T) {
	const text = `backend: "echo"
input { name: "x" data_type: TYPE_INT8 dims: 1 }
output { name: "a" data_type: TYPE_FP32 dims: 2 label_filename: "a.txt" }
output { name: "b" data_type: TYPE_FP32 dims: 2 label_filename: "deep/b.txt" }
output { name: "c" data_type: TYPE_FP32 dims: 2 label_filename: "c.txt" }
model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_INT8 dims: 1 input_data_file: "x.bin" } } }
model_warmup { name: "v" batch_size: 1 inputs { key: "x" value { data_type: TYPE_INT8 dims: 1 input_data_file: "y.bin" } } }
`
	tree := fstest.MapFS{
		"a.txt": {Data: []byte("cat\ndog\n")}, "deep/b.txt": {Data: make([]byte, modelconfig.MaxLabels+1)}, "warmup/x.bin": {Data: []byte{1}},
	}
	_, err := modelconfig.Load([]byte(text), modelconfig.Directory{Name: "m", Open: opened(tree)})
	want := []string{
		"line 4:49: label file 'deep/b.txt' cannot be read: it has more than 2097152 bytes for m",
		"line 5:49: label file 'c.txt' does not exist for m: put it there",
		"line 7:49: warmup data file 'warmup/y.bin' does not exist for m: put it there",
	}
	got := modelconfig.ProblemsOf(err)
	if !slices.EqualFunc(want, got, func(want string, p modelconfig.Problem) bool { return strings.HasPrefix(p.String(), want) }) {
		t.Errorf("problems = %v, want %q", got, want)
	}
}

func TestClassLabelsAreThoseOfTheOutputs(t *testing.T) {
	config, err := modelconfig.Load([]byte(`backend: "echo"
		input { name: "x" data_type: TYPE_INT8 dims: 1 }
		output [ { name: "a" data_type: TYPE_FP32 dims: 2 label_filename: "a.txt" }, { name: "b" data_type: TYPE_FP32 dims: 2 } ]`),
		modelconfig.Directory{Name: "m"})
	if err != nil {
		t.Fatal(err)
	}
	labels, err := modelconfig.ClassLabels(config, opened(fstest.MapFS{"a.txt": {Data: []byte("cat\ndog\n")}}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{"a": {"cat", "dog"}}, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	view, err := modelconfig.FromProto(config)
	if err != nil {
		t.Fatal(err)
	}
	labeled := view.WithLabels(func(output string) []string { return labels[output] })
	if diff := cmp.Diff([]string{"cat", "dog"}, labeled.Output("a").Labels); diff != "" || labeled.Output("b").Labels != nil {
		t.Errorf("labels of b %q, of a (-want +got):\n%s", labeled.Output("b").Labels, diff)
	}
	if view.Output("a").Labels != nil {
		t.Error("WithLabels changed the configuration that it was called on")
	}
	if _, err := modelconfig.ClassLabels(config, opened(nil)); len(modelconfig.ProblemsOf(err)) != 1 {
		t.Errorf("ClassLabels without the file: %v", err)
	}
}
