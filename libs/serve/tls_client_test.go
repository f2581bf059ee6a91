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

// connect makes a process dial another and returns the errors of both ends.
func connect(t *testing.T, dials, listens serve.TLS) (dialed, accepted error) {
	t.Helper()
	server, err := listens.Config(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	client, err := dials.Dialer(func(err error) { t.Error(err) })
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
	dialed = conn.HandshakeContext(t.Context())
	if dialed == nil {
		_, dialed = conn.Read(make([]byte, 1))
	}
	_ = near.Close()
	return dialed, <-served
}

func TestMembersKnowEachOtherWhateverTheirNames(t *testing.T) {
	a, b, stranger := newIdentity(t, "a"), newIdentity(t, "b"), newIdentity(t, "stranger")
	inside, outside := member(t, a, a, b), member(t, stranger, a, b, stranger)
	if dialed, accepted := connect(t, inside, member(t, b, a, b)); dialed != nil || accepted != nil {
		t.Errorf("two members: %v, %v", dialed, accepted)
	}
	if dialed, _ := connect(t, inside, outside); dialed == nil {
		t.Error("a member takes a stranger for a server")
	}
	if dialed, accepted := connect(t, outside, member(t, b, a, b)); dialed == nil || accepted == nil {
		t.Errorf("a stranger dials a member: %v, %v", dialed, accepted)
	}
}

func TestDialersReadChangedFiles(t *testing.T) {
	a, b := newIdentity(t, "a"), newIdentity(t, "b")
	files := member(t, a, a)
	client, err := files.Dialer(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, filepath.Dir(files.Certificate))
	shown, err := client.GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil || shown.Leaf.Subject.CommonName != "b" {
		t.Errorf("%v, %v", shown.Leaf.Subject, err)
	}
}
