package serve

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// TLS names the files, in PEM, by which a listener and its clients prove who
// they are.
type TLS struct {
	// Certificate is the server's, with what links it to its root; Key is its
	// private key.
	Certificate, Key string
	// Roots sign the certificates of clients. Required with Mutual.
	Roots string
	// Mutual refuses clients without a certificate that Roots have signed.
	Mutual bool
}

// Config reads the files. Each handshake looks whether they have changed and
// then reads them anew; files that cannot be used then are passed to failed,
// once, and those before stay in use. failed is called from any goroutine.
func (t TLS) Config(failed func(error)) (*tls.Config, error) {
	k, err := t.keep(failed)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.config(), nil },
	}, nil
}

// keep reads the files for the first time.
func (t TLS) keep(failed func(error)) (*keeper, error) {
	k := &keeper{files: t, failed: failed}
	k.seen = t.versions()
	var err error
	if k.present, err = t.read(); err != nil {
		return nil, err
	}
	return k, nil
}

func (t TLS) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot use the certificate %q with the key %q: %v", t.Certificate, t.Key, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}}
	if !t.Mutual {
		return c, nil
	}
	text, err := os.ReadFile(t.Roots)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot read the root certificates of clients: %v", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, errs.New(errs.ConfigInvalid, "%s has no certificate in PEM", t.Roots)
	}
	return c, nil
}

// versions tells the contents of the files apart.
type versions [3]struct {
	modified time.Time
	size     int64
}

func (t TLS) versions() (v versions) {
	for i, name := range []string{t.Certificate, t.Key, t.Roots} {
		if info, err := os.Stat(name); err == nil {
			v[i].modified, v[i].size = info.ModTime(), info.Size()
		}
	}
	return v
}

// keeper holds the configuration that the files last gave.
type keeper struct {
	files  TLS
	failed func(error)

	mu      sync.Mutex
	seen    versions    // guarded by mu
	present *tls.Config // guarded by mu
}

func (k *keeper) config() *tls.Config {
	now := k.files.versions()
	k.mu.Lock()
	defer k.mu.Unlock()
	if now == k.seen {
		return k.present
	}
	k.seen = now
	if c, err := k.files.read(); err != nil {
		k.failed(err)
	} else {
		k.present = c
	}
	return k.present
}
