package access_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/bus/access"
	"github.com/nereid-serving/nereid/libs/errs"
)

// writeCertificate makes a certificate that signs itself, which is its own
// authority, in the files that the images have.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"}, DNSNames: []string{"localhost"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"certificate.pem": {Type: "CERTIFICATE", Bytes: certificate},
		"authority.pem":   {Type: "CERTIFICATE", Bytes: certificate},
		"key.pem":         {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// member is how a service with those files meets the server.
func member(t *testing.T, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(pair.Leaf)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "localhost"}
}

func TestServicesMeetTheServerOverTLS(t *testing.T) {
	dir, strange := t.TempDir(), t.TempDir()
	writeCertificate(t, dir)
	writeCertificate(t, strange)
	d := startOn(t, "nats-tls.conf", strings.NewReplacer("/tls/", dir+"/"))
	_, address, _ := strings.Cut(d.url, "://")
	config := bus.Config{URL: "tls://" + address, Credentials: filepath.Join(d.keys, access.KeyFile("registry")), TLS: member(t, dir)}
	b, err := bus.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.EnsureBuckets(t.Context()), b.Close()); err != nil {
		t.Fatal(err)
	}

	unknown, bare := config, config
	unknown.TLS = member(t, strange)
	bare.TLS = &tls.Config{RootCAs: config.TLS.RootCAs, ServerName: "localhost"}
	for name, config := range map[string]bus.Config{"strangers": unknown, "no certificate": bare} {
		b, err := bus.Open(t.Context(), config)
		if err == nil {
			t.Error(errors.Join(errors.New(name+" is let in"), b.Close()))
		} else if errs.Of(err) != errs.StateUnavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}
