package e2e

import (
	"regexp"
	"slices"
	"testing"
)

// TestFilesAreToldApartByLanguage sends files of the project: the long ones
// are cut to one length and share a batch, a short one goes alone.
func TestFilesAreToldApartByLanguage(t *testing.T) {
	s := start(t, examples(t))
	languages := map[string]string{
		"test/e2e/process_test.go":     "Go",
		"test/e2e/server_test.go":      "Go",
		"test/e2e/doc.go":              "Go",
		"examples/clients/classify.py": "Python",
		"examples/train/digits.py":     "Python",
		"examples/clients/README.md":   "Markdown",
		"README.md":                    "Markdown",
	}
	args := []string{"examples/clients/language.py"}
	for file := range languages {
		args = append(args, file)
	}
	for protocol, url := range map[string]string{"http": s.HTTP, "grpc": s.GRPC, "aio": s.GRPC} {
		t.Run(protocol, func(t *testing.T) {
			out := python(t, nil, slices.Concat(args, []string{"--protocol", protocol, "--url", url})...)
			for file, want := range languages {
				row := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(file) + ` +(\w+) `).FindStringSubmatch(out)
				if row == nil || row[1] != want {
					t.Errorf("%s is %s and read as %v", file, want, row)
				}
			}
		})
	}
}
