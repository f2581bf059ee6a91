package serve

import (
	"crypto/tls"
	"crypto/x509"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Dialer returns the configuration of a client of listeners with the same roots.
// It reads changed files as [TLS.Config] does. The roots sign the certificates of
// all listeners, so a server is authenticated by its certificate and not by the
// name in its address.
func (t TLS) Dialer(failed func(error)) (*tls.Config, error) {
	r, err := t.reloader(failed)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &r.config().Certificates[0], nil
		},
		InsecureSkipVerify: true, // VerifyConnection does it, with the roots of this moment
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s.PeerCertificates, r.config().ClientCAs) },
	}, nil
}

func verify(chain []*x509.Certificate, roots *x509.CertPool) error {
	if len(chain) == 0 {
		return errs.New(errs.ConfigInvalid, "the other service shows no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}
