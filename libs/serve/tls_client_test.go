package serve_test

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nereid-serving/nereid/libs/serve"
)

// member writes the files of a process whose peers are those that the
// authority has signed; an identity signs itself.
func member(t *testing.T, own identity, authority ...identity) serve.TLS {
	t.Helper()
	dir := t.TempDir()
	files := own.write(t, dir)
	files.Mutual, files.Roots = true, filepath.Join(dir, "roots.pem")
	var roots []byte
	for _, a := range authority {
		roots = slices.Concat(roots, a.certificate)
	}
	if err := os.WriteFile(files.Roots, roots, 0o600); err != nil {
		t.Fatal(err)
	}
	return files
}

// meet lets a process dial another and returns what both ends say of it.
func meet(t *testing.T, dials, listens serve.TLS) (dialled, accepted error) {
	t.Helper()
	server, err := listens.Config(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	client, err := dials.Dialler(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	client.NextProtos = []string{"h2"}
	near, far := net.Pipe()
	defer near.Close()
	served := make(chan error, 1)
	go func() {
		conn := tls.Server(far, server)
		err := conn.HandshakeContext(t.Context())
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		served <- err
		_ = far.Close()
	}()
	conn := tls.Client(near, client)
	dialled = conn.HandshakeContext(t.Context())
	if dialled == nil {
		_, dialled = conn.Read(make([]byte, 1))
	}
	_ = near.Close()
	return dialled, <-served
}

func TestMembersKnowEachOtherWhateverTheirNames(t *testing.T) {
	a, b, stranger := newIdentity(t, "a"), newIdentity(t, "b"), newIdentity(t, "stranger")
	inside, outside := member(t, a, a, b), member(t, stranger, a, b, stranger)
	if dialled, accepted := meet(t, inside, member(t, b, a, b)); dialled != nil || accepted != nil {
		t.Errorf("two members: %v, %v", dialled, accepted)
	}
	if dialled, _ := meet(t, inside, outside); dialled == nil {
		t.Error("a member takes a stranger for a server")
	}
	if dialled, accepted := meet(t, outside, member(t, b, a, b)); dialled == nil || accepted == nil {
		t.Errorf("a stranger dials a member: %v, %v", dialled, accepted)
	}
}

func TestDiallersFollowTheirFiles(t *testing.T) {
	a, b := newIdentity(t, "a"), newIdentity(t, "b")
	files := member(t, a, a)
	client, err := files.Dialler(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, filepath.Dir(files.Certificate))
	shown, err := client.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil || shown.Leaf.Subject.CommonName != "b" {
		t.Errorf("%v, %v", shown.Leaf.Subject, err)
	}
}
