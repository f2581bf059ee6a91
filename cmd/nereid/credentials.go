package main

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/bus/access"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
)

// credentials makes what the services of a cluster and its NATS server need
// to authenticate each other.
type credentials struct {
	Directory string   `arg:"" help:"Directory for the files; existing files are kept."`
	Host      []string `name:"host" sep:"none" placeholder:"NAME" help:"Host name or address of NATS and the registry, for their certificates; repeat the flag for several. The default is localhost and nats."`
	Process   []string `name:"process" sep:"none" placeholder:"ROLE/ID" help:"Process to create a certificate for, such as worker/w1, which is valid for no other process of its role; repeat the flag for several."`
}

// Help says what is made, and shows examples.
func (credentials) Help() string {
	return `For each role of gateway, scheduler, worker, registry, operator and nats, ROLE/certificate.pem, key.pem and authority.pem are made, for --cluster-certificate, --cluster-key and --cluster-authority. The role is in the certificate, and says which calls its process may make. For each service, nats.nk beside them is for --nats-credentials, and server/users.conf for the NATS server's configuration to include. authority/key.pem signs the certificates: keep it from the services.

All files are readable by their owner alone. Run again, it renews certificates that end within a month, writes users.conf of this release, and keeps the rest. A file that it did not make is never replaced.

Examples:

    nereid credentials keys/
    nereid credentials keys/ --host nats.example.com --process worker/w1 --process worker/w2`
}

// Validate refuses processes that are none, with the reason config_invalid.
func (c *credentials) Validate() error {
	_, err := c.processes()
	return err
}

// processes are those that get a certificate: each role, and those that are
// named.
func (c *credentials) processes() ([]identity.Identity, error) {
	var list []identity.Identity
	for _, role := range identity.Roles() {
		list = append(list, identity.Identity{Role: role})
	}
	for _, text := range c.Process {
		role, id, ok := strings.Cut(text, "/")
		if !ok || id == "" || strings.ContainsAny(id, `/\`) || id == "." || id == ".." || !slices.Contains(identity.Roles(), identity.Role(role)) {
			return nil, errs.New(errs.ConfigInvalid, "--process=%s: want ROLE/ID, such as worker/w1, with a role of %v", text, identity.Roles())
		}
		list = append(list, identity.Identity{Role: identity.Role(role), ID: id})
	}
	return list, nil
}

// Run makes the files and prints the names of those that are new, and of the
// keys for NATS.
func (c *credentials) Run(stdout io.Writer) error {
	processes, err := c.processes()
	if err != nil {
		return err
	}
	if err := access.Write(c.Directory); err != nil {
		return err
	}
	for _, service := range access.Services() {
		fmt.Fprintln(stdout, filepath.Join(c.Directory, access.KeyFile(service.Name)))
	}
	fmt.Fprintln(stdout, filepath.Join(c.Directory, access.UsersFile))
	authority, err := identity.OpenAuthority(filepath.Join(c.Directory, "authority"), time.Now())
	if err != nil {
		return err
	}
	for _, p := range processes {
		dir := filepath.Join(c.Directory, string(p.Role), p.ID)
		made, err := authority.Issue(dir, p, c.hosts(p))
		if err != nil {
			return err
		}
		if made {
			fmt.Fprintln(stdout, filepath.Join(dir, identity.CertificateFile))
		}
	}
	return nil
}

// hosts are the names in a certificate: services do not verify each other's
// names, but they verify NATS's, and operators the registry's.
func (c *credentials) hosts(p identity.Identity) []string {
	switch {
	case p.Role != identity.NATS && p.Role != identity.Registry:
		return nil
	case len(c.Host) > 0:
		return c.Host
	}
	return []string{"localhost", "nats"}
}
