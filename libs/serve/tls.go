package serve

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"os"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// TLS names the files, in PEM, by which a listener and its clients authenticate
// each other.
type TLS struct {
	// Certificate is the server's, with its intermediates; Key is its private key.
	Certificate, Key string
	// Roots sign the certificates of clients. Mutual needs it.
	Roots string
	// Mutual refuses clients without a certificate that Roots have signed.
	Mutual bool
	// Protocol is the one that the listener speaks, as ALPN names it; empty is h2.
	Protocol string
}

// Given returns the files, or nil where TLS is not used. The error, of the reason
// config_invalid, says what is missing, by the flags whose names begin with prefix.
func (t TLS) Given(use bool, prefix string) (*TLS, error) {
	switch {
	case !use && !t.Mutual:
		return nil, nil
	case t.Certificate == "" || t.Key == "":
		return nil, errs.New(errs.ConfigInvalid, "%[1]s-use-ssl needs a certificate and its key: give %[1]s-server-cert=FILE and %[1]s-server-key=FILE", prefix)
	case t.Mutual && t.Roots == "":
		return nil, errs.New(errs.ConfigInvalid, "%[1]s-use-ssl-mutual needs what signs the clients' certificates: give %[1]s-root-cert=FILE", prefix)
	}
	return &t, nil
}

// Config reads the files, and reads them again in the first handshake after a change. If
// changed files are invalid, the old ones stay in use, and failed is called once with the
// error, from any goroutine.
func (t TLS) Config(failed func(error)) (*tls.Config, error) {
	r, err := t.reloader(failed)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.config(), nil },
	}, nil
}

// reloader reads the files for the first time.
func (t TLS) reloader(failed func(error)) (*reloader, error) {
	r := &reloader{files: t, failed: failed, seen: t.stamps()}
	var err error
	if r.current, err = t.read(); err != nil {
		return nil, err
	}
	return r, nil
}

func (t TLS) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.Certificate, t.Key)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "cannot use the certificate %q with the key %q: %v", t.Certificate, t.Key, err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{cmp.Or(t.Protocol, "h2")}}
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

// stamps change when the files do.
type stamps [3]struct {
	modified time.Time
	size     int64
}

func (t TLS) stamps() (s stamps) {
	for i, name := range []string{t.Certificate, t.Key, t.Roots} {
		if info, err := os.Stat(name); err == nil {
			s[i].modified, s[i].size = info.ModTime(), info.Size()
		}
	}
	return s
}

// reloader holds the configuration of the files that were read last.
type reloader struct {
	files  TLS
	failed func(error)

	mu      sync.Mutex
	seen    stamps      // guarded by mu
	current *tls.Config // guarded by mu
}

func (r *reloader) config() *tls.Config {
	now := r.files.stamps()
	r.mu.Lock()
	defer r.mu.Unlock()
	if now == r.seen {
		return r.current
	}
	r.seen = now
	if c, err := r.files.read(); err != nil {
		r.failed(err)
	} else {
		r.current = c
	}
	return r.current
}
