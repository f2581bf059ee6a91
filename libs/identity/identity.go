// Package identity determines the role of a process from its certificate, and
// which role may make which call.
//
// A certificate of a cluster carries one SPIFFE ID as a URI: spiffe://DOMAIN/ROLE,
// or spiffe://DOMAIN/ROLE/ID for one process. The domain is arbitrary, because
// the cluster's authorities decide whom they sign. Without TLS there is no
// identity and every call is allowed.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Role is what a process may be in a cluster.
type Role string

// The roles. An operator is a person or a script; NATS calls no service.
const (
	Gateway   Role = "gateway"
	Scheduler Role = "scheduler"
	Worker    Role = "worker"
	Registry  Role = "registry"
	Operator  Role = "operator"
	NATS      Role = "nats"
)

// Roles lists all roles.
func Roles() []Role { return []Role{Gateway, Scheduler, Worker, Registry, Operator, NATS} }

// Identity is the identity in a process's certificate.
type Identity struct {
	Role Role
	// ID is that of the process, or empty where all processes of the role share
	// the certificate.
	ID string
}

const scheme = "spiffe"

// uri returns the identity as a certificate carries it.
func (i Identity) uri(domain string) *url.URL {
	path := "/" + string(i.Role)
	if i.ID != "" {
		path += "/" + i.ID
	}
	return &url.URL{Scheme: scheme, Host: domain, Path: path}
}

// Parse reads the identity that a certificate carries. Errors have the reason
// role_forbidden.
func Parse(c *x509.Certificate) (Identity, error) {
	var found []*url.URL
	for _, u := range c.URIs {
		if u.Scheme == scheme {
			found = append(found, u)
		}
	}
	if len(found) != 1 {
		return Identity{}, errs.New(errs.RoleForbidden, "the certificate of %q carries %d roles as a URI such as spiffe://nereid/worker, want one: make it with nereid credentials", c.Subject.CommonName, len(found))
	}
	role, id, _ := strings.Cut(strings.TrimPrefix(found[0].Path, "/"), "/")
	if !slices.Contains(Roles(), Role(role)) || strings.Contains(id, "/") {
		return Identity{}, errs.New(errs.RoleForbidden, "the certificate of %q carries %s, whose path is neither /ROLE nor /ROLE/ID with a role of %v", c.Subject.CommonName, found[0], Roles())
	}
	return Identity{Role(role), id}, nil
}

// FromContext returns the identity of a call's caller; secured is false where
// the connection has no TLS.
func FromContext(ctx context.Context) (i Identity, secured bool, err error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return i, false, nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return i, false, nil
	}
	if len(info.State.PeerCertificates) == 0 {
		return i, true, errs.New(errs.RoleForbidden, "the caller shows no certificate")
	}
	i, err = Parse(info.State.PeerCertificates[0])
	return i, true, err
}

// CheckID refuses a caller that names itself id although its certificate is
// another process's, with the reason role_forbidden.
func CheckID(ctx context.Context, id string) error {
	i, secured, err := FromContext(ctx)
	switch {
	case err != nil || !secured || i.ID == "" || i.ID == id:
		return err
	}
	return errs.New(errs.RoleForbidden, "the certificate of %s %q does not speak for %q", i.Role, i.ID, id)
}

// Owner returns the id of the process with an incarnation, if it is known.
type Owner func(incarnation uint64) (id string, known bool)

// Owners know the incarnations of the processes of each role.
type Owners map[Role]Owner

// CheckIncarnation refuses a caller whose claim contradicts its certificate: another id, or an
// incarnation that belongs to another process or role according to the owners. The reason is
// role_forbidden.
func CheckIncarnation(ctx context.Context, id string, incarnation uint64, owners Owners) error {
	i, secured, err := FromContext(ctx)
	if err != nil || !secured {
		return err
	}
	if err := CheckID(ctx, id); err != nil {
		return err
	}
	for role, owner := range owners {
		holder, known := owner(incarnation)
		if known && (role != i.Role || i.ID != "" && i.ID != holder) {
			return errs.New(errs.RoleForbidden, "the certificate of %s %q does not speak for the incarnation %d, which is that of %s %q", i.Role, i.ID, incarnation, role, holder)
		}
	}
	return nil
}

// Expect returns a client's configuration that accepts servers of one role
// alone; nil, for plain text, stays nil.
func Expect(c *tls.Config, role Role) *tls.Config {
	if c == nil {
		return nil
	}
	expecting := c.Clone()
	expecting.VerifyConnection = func(s tls.ConnectionState) error {
		if c.VerifyConnection != nil {
			if err := c.VerifyConnection(s); err != nil {
				return err
			}
		}
		i, err := Parse(s.PeerCertificates[0]) // a server shows one
		if err != nil {
			return err
		}
		if i.Role != role {
			return errs.New(errs.RoleForbidden, "the certificate of the %s is that of a %s", role, i.Role)
		}
		return nil
	}
	return expecting
}
