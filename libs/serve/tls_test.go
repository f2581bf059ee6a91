package serve_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
)

// identity is a certificate that signs itself, and its key.
type identity struct {
	certificate, key []byte // PEM
}

func newIdentity(t *testing.T, name string) identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return identity{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
}

// write puts the identity's files into dir.
func (i identity) write(t *testing.T, dir string) serve.TLS {
	t.Helper()
	files := serve.TLS{Certificate: filepath.Join(dir, "server.pem"), Key: filepath.Join(dir, "server.key")}
	for name, text := range map[string][]byte{files.Certificate: i.certificate, files.Key: i.key} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// handshake returns the name in the server's certificate.
func handshake(t *testing.T, config *tls.Config, from *identity) (string, error) {
	t.Helper()
	client := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // the name is the test
	if from != nil {
		pair, err := tls.X509KeyPair(from.certificate, from.key)
		if err != nil {
			t.Fatal(err)
		}
		client.Certificates = []tls.Certificate{pair}
	}
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	server := tls.Server(far, config)
	served := make(chan error, 1)
	go func() { served <- server.HandshakeContext(t.Context()); _ = far.Close() }()
	conn := tls.Client(near, client)
	if err := conn.HandshakeContext(t.Context()); err != nil {
		return "", err
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // what the server says after its part
	if err := <-served; err != nil {
		return "", err
	}
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func TestTLSFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	files := newIdentity(t, "first").write(t, dir)
	failed := make(chan error, 1)
	config, err := files.Config(func(err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	shows := func(want string) {
		t.Helper()
		if name, err := handshake(t, config, nil); name != want || err != nil {
			t.Errorf("the server is %q, %v, want %q", name, err, want)
		}
	}
	shows("first")
	newIdentity(t, "the second").write(t, dir)
	shows("the second")
	if err := os.WriteFile(files.Key, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	shows("the second") // what is broken does not take its place
	if err := <-failed; errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), files.Key) {
		t.Errorf("told of %v", err)
	}
	shows("the second") // and is told once: a second time would wait here
}

func TestMutualTLSRefusesStrangers(t *testing.T) {
	dir := t.TempDir()
	files, friend, stranger := newIdentity(t, "server").write(t, dir), newIdentity(t, "friend"), newIdentity(t, "stranger")
	files.Mutual, files.Roots = true, filepath.Join(dir, "roots.pem")
	if err := os.WriteFile(files.Roots, friend.certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := files.Config(func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from *identity
		ok   bool
	}{"one that is signed": {&friend, true}, "one that is not": {&stranger, false}, "none": {nil, false}} {
		if _, err := handshake(t, config, c.from); (err == nil) != c.ok {
			t.Errorf("a certificate, %s: %v", name, err)
		}
	}
}

func TestTLSSaysWhichFileCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	good := newIdentity(t, "server").write(t, dir)
	for want, change := range map[string]func(*serve.TLS){
		"no-such-certificate": func(f *serve.TLS) { f.Certificate = "no-such-certificate" },
		"server.key":          func(f *serve.TLS) { f.Certificate = f.Key },
		"no-such-roots":       func(f *serve.TLS) { f.Mutual, f.Roots = true, "no-such-roots" },
		"no certificate":      func(f *serve.TLS) { f.Mutual, f.Roots = true, f.Key },
	} {
		files := good
		change(&files)
		if _, err := files.Config(nil); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
