package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Files are those of one process, by their names in its directory.
const (
	CertificateFile = "certificate.pem"
	KeyFile         = "key.pem"
	AuthorityFile   = "authority.pem"
)

const (
	// Domain is the domain of the identities that an [Authority] signs.
	Domain = "nereid"

	authorityValidity   = 10 * 365 * 24 * time.Hour
	certificateValidity = 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is renewed.
	renewBefore = 30 * 24 * time.Hour
	// backdate allows clocks of other machines to be behind.
	backdate = time.Hour
)

// Authority signs the certificates of a cluster.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	now         time.Time
}

// OpenAuthority reads the authority of a directory, or makes one there. Errors
// have the reason config_invalid.
func OpenAuthority(dir string, now time.Time) (*Authority, error) {
	pair, err := readPair(dir)
	if err != nil {
		return nil, err
	}
	if pair != nil {
		key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
		switch {
		case !ok || !pair.Leaf.IsCA:
			return nil, errs.New(errs.ConfigInvalid, "%s is no authority's with a key for ECDSA: give another directory", filepath.Join(dir, CertificateFile))
		case now.After(pair.Leaf.NotAfter):
			return nil, errs.New(errs.ConfigInvalid, "the authority in %s has expired on %s: make a new one in another directory, and have all services accept both", dir, pair.Leaf.NotAfter.Format(time.DateOnly))
		}
		return &Authority{certificate: pair.Leaf, key: key, now: now}, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "Nereid cluster"}, NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityValidity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	certificate, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	return &Authority{certificate: certificate, key: key, now: now}, writePair(dir, certificate, key)
}

// Issue makes the files of one process in a directory, unless they are there, for
// these hosts and good for another month: then made is false. hosts are the names
// and addresses under which the process is found, for peers that verify them. A
// certificate of another identity or authority is not replaced: that is an error
// of the reason config_invalid.
func (a *Authority) Issue(dir string, i Identity, hosts []string) (made bool, err error) {
	pair, err := readPair(dir)
	if err != nil {
		return false, err
	}
	if pair != nil {
		known, err := Parse(pair.Leaf)
		if err != nil || known != i || pair.Leaf.CheckSignatureFrom(a.certificate) != nil {
			return false, errs.New(errs.ConfigInvalid, "%s is not that of %s by this authority: remove %s to have a new one made", filepath.Join(dir, CertificateFile), i.uri(Domain), dir)
		}
		foreign := func(host string) bool { return pair.Leaf.VerifyHostname(host) != nil }
		if a.now.Add(renewBefore).Before(pair.Leaf.NotAfter) && !slices.ContainsFunc(hosts, foreign) {
			return false, nil
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return false, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: string(i.Role)}, NotBefore: a.now.Add(-backdate), NotAfter: a.now.Add(certificateValidity),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs: []*url.URL{i.uri(Domain)},
	}
	if i.ID != "" {
		template.Subject.CommonName += "/" + i.ID
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	certificate, err := sign(template, a.certificate, key, a.key)
	if err != nil {
		return false, err
	}
	if err := writeFile(filepath.Join(dir, AuthorityFile), "CERTIFICATE", a.certificate.Raw); err != nil {
		return false, err
	}
	return true, writePair(dir, certificate, key)
}

func sign(template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by) // with a serial number at random
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return x509.ParseCertificate(der)
}

// readPair reads a certificate with its key; nil is that neither is there.
func readPair(dir string) (*tls.Certificate, error) {
	certificate, key := filepath.Join(dir, CertificateFile), filepath.Join(dir, KeyFile)
	_, noCertificate := os.Stat(certificate)
	_, noKey := os.Stat(key)
	if errors.Is(noCertificate, fs.ErrNotExist) && errors.Is(noKey, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "what is in %s is not replaced, and is no certificate with its key (%v): remove it to have a new one made", dir, err)
	}
	return &pair, nil
}

// writePair writes the key first: a certificate is there with its key, or not at
// all. A process that reads a new key with the certificate before refuses the
// pair, and keeps the one that it has until the certificate is there too.
func writePair(dir string, c *x509.Certificate, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, KeyFile), "PRIVATE KEY", der); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, CertificateFile), "CERTIFICATE", c.Raw)
}

// writeFile writes a file in PEM, readable by its owner alone, that is whole
// whenever it is there.
func writeFile(path, kind string, der []byte) (err error) {
	defer func() {
		if err != nil {
			err = errs.Wrap(errs.StateUnavailable, err, "cannot write %s: %v", path, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // with mode 0600
	if err != nil {
		return err
	}
	if err := errors.Join(pem.Encode(f, &pem.Block{Type: kind, Bytes: der}), f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}
