package modelconfig

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// MaxLabels is the most bytes of a file of labels: some 60,000 classes with
// names of 30 bytes.
const MaxLabels = 2 << 20

// ReadLabels reads a file of labels as Triton does: one in each line, that of
// class 0 first, of any bytes but the newline that ends it. An empty line is
// an empty label, and the last line needs no end.
func ReadLabels(r io.Reader) ([]string, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxLabels+1))
	if err != nil {
		return nil, err
	}
	if len(text) > MaxLabels {
		return nil, fmt.Errorf("it has more than %d bytes", MaxLabels)
	}
	if len(text) == 0 {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil
}

// PackLabels writes labels that were read as a compressed file of labels.
// Equal labels give equal bytes.
func PackLabels(labels []string) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	for _, label := range labels {
		// A buffer takes all that it is given.
		_, _ = io.WriteString(w, label)
		_, _ = io.WriteString(w, "\n")
	}
	_ = w.Close()
	return packed.Bytes()
}

// UnpackLabels reverses [PackLabels].
func UnpackLabels(packed []byte) ([]string, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return ReadLabels(r)
}

// ClassLabels reads the labels of the outputs that have them, by output. open
// is as in [Directory]. The error is as [Load]'s.
func ClassLabels(c *inference.ModelConfig, open func(path string) (io.ReadCloser, error)) (map[string][]string, error) {
	r := &report{model: c.GetName()}
	labels := make(map[string][]string)
	for i, out := range c.GetOutput() {
		if out.GetLabelFilename() != "" {
			labels[out.GetName()] = r.labels(i, out, open)
		}
	}
	return labels, r.problems.AsError(r.model)
}

func (r *report) labels(i int, out *inference.ModelOutput, open func(string) (io.ReadCloser, error)) []string {
	at := index("output", i) + ".label_filename"
	file := r.open(at, "label file", out.GetLabelFilename(), open)
	if file == nil {
		return nil
	}
	defer file.Close()
	labels, err := ReadLabels(file)
	if err != nil {
		r.invalid(at, "write one label in each line", "label file '%s' cannot be read: %v", out.GetLabelFilename(), err)
	}
	return labels
}
