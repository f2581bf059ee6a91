package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/bus/access"
)

// credentials makes what the services of a cluster and its NATS server need
// to know each other.
type credentials struct {
	Directory string `arg:"" help:"Where to make SERVICE/nats.nk, for --nats-credentials of each service, and server/users.conf, for the NATS server's configuration to include. Keys that are there are kept."`
}

// Help shows an example.
func (credentials) Help() string { return "Example:\n\n    nereid credentials keys/" }

// Run makes the files.
func (c *credentials) Run(stdout io.Writer) error {
	if err := access.Write(c.Directory); err != nil {
		return err
	}
	for _, service := range access.Services() {
		fmt.Fprintln(stdout, filepath.Join(c.Directory, access.KeyFile(service.Name)))
	}
	_, err := fmt.Fprintln(stdout, filepath.Join(c.Directory, access.UsersFile))
	return err
}
