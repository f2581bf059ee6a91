package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// release is the version of this source.
const release = "0.1.0"

// version prints the version.
type version struct{}

// Help shows an example.
func (version) Help() string { return "Example:\n\n    nereid version" }

// Run prints one line.
func (version) Run(stdout io.Writer) error {
	_, err := fmt.Fprintf(stdout, "nereid %s%s %s %s/%s\n", release, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// revision is the commit that the program was built from, if that is known.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return " (" + s.Value[:12] + ")"
		}
	}
	return ""
}
