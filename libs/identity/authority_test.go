package identity_test

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
)

func read(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// issue issues with the authority of dir at a time.
func issue(t *testing.T, dir string, now time.Time, i identity.Identity, hosts ...string) bool {
	t.Helper()
	authority, err := identity.OpenAuthority(filepath.Join(dir, "authority"), now)
	if err != nil {
		t.Fatal(err)
	}
	made, err := authority.Issue(filepath.Join(dir, string(i.Role), i.ID), i, hosts)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestCertificatesAreKeptUntilTheyEndOrTheirHostsChange(t *testing.T) {
	dir, now, nats := t.TempDir(), time.Now(), identity.Identity{Role: identity.NATS}
	file := filepath.Join(dir, "nats", identity.CertificateFile)
	if !issue(t, dir, now, nats, "nats", "127.0.0.1") {
		t.Error("the first was not made")
	}
	first := read(t, file)
	for _, host := range []string{"nats", "127.0.0.1"} {
		if err := first.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if issue(t, dir, now, nats, "nats") || issue(t, dir, now.AddDate(0, 10, 0), nats, "nats", "127.0.0.1") {
		t.Error("a good certificate was replaced")
	}
	if !issue(t, dir, now, nats, "nats", "other") || read(t, file).VerifyHostname("other") != nil {
		t.Error("a new host has no certificate")
	}
	if !issue(t, dir, now.AddDate(0, 11, 20), nats, "nats") || read(t, file).NotAfter.Before(now.AddDate(1, 11, 0)) {
		t.Error("a certificate that ends was not renewed")
	}
}

func TestFilesAreTheirOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	issue(t, dir, time.Now(), identity.Identity{Role: identity.Worker, ID: "w1"})
	seen := 0
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			if seen++; info.Mode() != 0o600 {
				t.Errorf("%s has the mode %v", path, info.Mode())
			}
		}
		return err
	})
	if err != nil || seen != 5 {
		t.Errorf("%d files, %v", seen, err)
	}
}

func TestWhatIsNotOursIsNotReplaced(t *testing.T) {
	now, worker := time.Now(), identity.Identity{Role: identity.Worker}
	for name, spoil := range map[string]func(dir string) error{
		"something else": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "worker", identity.CertificateFile), []byte("mine"), 0o600)
		},
		"a key alone": func(dir string) error { return os.Remove(filepath.Join(dir, "worker", identity.CertificateFile)) },
		"another role": func(dir string) error {
			issue(t, dir, now, identity.Identity{Role: identity.Registry})
			if err := os.RemoveAll(filepath.Join(dir, "worker")); err != nil {
				return err
			}
			return os.Rename(filepath.Join(dir, "registry"), filepath.Join(dir, "worker"))
		},
		"another authority's": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "authority")) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			issue(t, dir, now, worker)
			if err := spoil(dir); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(filepath.Join(dir, "worker", identity.CertificateFile))
			authority, err := identity.OpenAuthority(filepath.Join(dir, "authority"), now)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := authority.Issue(filepath.Join(dir, "worker"), worker, nil); errs.Of(err) != errs.ConfigInvalid {
				t.Errorf("issued, or failed without a reason: %v", err)
			}
			if after, _ := os.ReadFile(filepath.Join(dir, "worker", identity.CertificateFile)); string(after) != string(before) {
				t.Error("the file was replaced")
			}
		})
	}
	dir := t.TempDir()
	issue(t, dir, now, worker)
	if _, err := identity.OpenAuthority(filepath.Join(dir, "worker"), now); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("a service's certificate is an authority: %v", err)
	}
	if _, err := identity.OpenAuthority(filepath.Join(dir, "authority"), now.AddDate(11, 0, 0)); errs.Of(err) != errs.ConfigInvalid {
		t.Errorf("an authority that has expired signs: %v", err)
	}
}
