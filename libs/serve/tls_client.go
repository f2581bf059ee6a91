package serve

import (
	"crypto/tls"
	"crypto/x509"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Dialler is the configuration of the other end: of who dials a listener that
// has the same roots, with the same files and reading them anew as
// [TLS.Config] does. The roots sign for all that listens, so a server is known
// by its certificate and not held against the name it was dialled by.
func (t TLS) Dialler(failed func(error)) (*tls.Config, error) {
	k, err := t.keep(failed)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &k.config().Certificates[0], nil
		},
		InsecureSkipVerify: true, // VerifyConnection does it, with the roots of this moment
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s.PeerCertificates, k.config().ClientCAs) },
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
