package main

import (
	"fmt"
	"io"

	"github.com/nereid-serving/nereid/libs/process"
)

// version prints the version.
type version struct{}

// Help shows an example.
func (version) Help() string { return "Example:\n\n    nereid version" }

// Run prints one line.
func (version) Run(stdout io.Writer) error {
	_, err := fmt.Fprintln(stdout, "nereid", process.Version())
	return err
}
