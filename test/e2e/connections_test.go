package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificates writes server.pem, client.pem, visitor.pem and stranger.pem with their keys
// into a directory; root.pem has signed all but the last.
func certificates(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root, rootKey := issue(t, dir, "root", nil, nil)
	issue(t, dir, "server", root, rootKey)
	issue(t, dir, "client", root, rootKey)
	issue(t, dir, "visitor", root, rootKey)
	issue(t, dir, "stranger", nil, nil)
	return dir
}

// issue writes a certificate for localhost that by has signed, or itself.
func issue(t *testing.T, dir, name string, by *x509.Certificate, byKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: by == nil, BasicConstraintsValid: true,
	}
	if by == nil {
		by, byKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, byKey)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c, key
}

func TestRealClientsOverTLS(t *testing.T) {
	dir := certificates(t)
	for name, flags := range map[string][]string{
		"server": {"--grpc-use-ssl=true"},
		"mutual": {"--grpc-use-ssl-mutual=true", "--grpc-root-cert=" + filepath.Join(dir, "root.pem")},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, examples(t), append(flags,
				"--grpc-server-cert="+filepath.Join(dir, "server.pem"), "--grpc-server-key="+filepath.Join(dir, "server.key"))...)
			python(t, []string{"GRPC_URL=" + s.GRPC, "CERTIFICATES=" + dir, "MUTUAL=" + name}, "test/e2e/clients/test_connections.py", "-v", "TLS")
		})
	}
}

func TestCommandsOverTLS(t *testing.T) {
	dir := certificates(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}),
		"--grpc-use-ssl-mutual=true", "--grpc-root-cert="+file("root.pem"),
		"--grpc-server-cert="+file("server.pem"), "--grpc-server-key="+file("server.key"))
	own := []string{"--tls-cert=" + file("client.pem"), "--tls-key=" + file("client.key")}
	for name, c := range map[string]struct {
		flags  []string
		status int
		want   string
	}{
		"all that it needs":      {append(own, "--tls-root="+file("root.pem")), 0, "READY"},
		"plain text":             {nil, 1, "add --tls"},
		"a root that is unknown": {append(own, "--tls"), 1, "--tls-root=FILE"},
		"no certificate":         {[]string{"--tls-root=" + file("root.pem")}, 1, "--tls-cert=FILE"},
		"no such file":           {[]string{"--tls-root=nothing"}, 1, "nothing"},
		"half a certificate":     {own[:1], 1, "--tls-key="},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, status := nereid(t, append([]string{"models", "--protocol=grpc", "--url=" + s.GRPC}, c.flags...)...)
			if text := stdout + stderr; status != c.status || !strings.Contains(text, c.want) {
				t.Errorf("exit status %d, want %d with %q:\n%s", status, c.status, c.want, text)
			}
		})
	}
}

func TestCommandsSendHeaders(t *testing.T) {
	s := start(t, repository(t, map[string]string{"m/config.pbtxt": echo(0), "m/1/.keep": ""}),
		"--http-restricted-api=inference,metadata,model-repository:key=secret",
		"--grpc-restricted-protocol=inference,metadata:key=secret", "--grpc-restricted-protocol=model-repository:other=one")
	for protocol, prefix := range map[string]string{"http": "", "grpc": "triton-grpc-protocol-"} {
		url := map[string]string{"http": s.HTTP, "grpc": s.GRPC}[protocol]
		key := "--header=" + prefix + "Key: secret"
		for name, c := range map[string]struct {
			args   []string
			status int
			want   string
		}{
			"infer":           {[]string{"infer", "m", "--input=x=1", key}, 0, "INT32"},
			"models":          {[]string{"models", key, "-H", prefix + "other:one"}, 0, "READY"},
			"no header":       {[]string{"infer", "m", "--input=x=1"}, 1, "[api_restricted]"},
			"another value":   {[]string{"models", "--header=" + prefix + "key: secre", "-H", prefix + "other: two"}, 1, "[api_restricted]"},
			"what is none":    {[]string{"models", "--header=key=secret"}, 64, "--header: \"key=secret\" is no header: want NAME: VALUE"},
			"a name in parts": {[]string{"models", "--header=a key: secret"}, 64, "want NAME: VALUE"},
		} {
			t.Run(protocol+": "+name, func(t *testing.T) {
				stdout, stderr, status := nereid(t, append(c.args, "--protocol="+protocol, "--url="+url)...)
				if text := stdout + stderr; status != c.status || !strings.Contains(text, c.want) {
					t.Errorf("exit status %d, want %d with %q:\n%s", status, c.status, c.want, text)
				}
			})
		}
	}
}

func TestRealClientsAndConnectionFlags(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "grpc.sock")
	s := start(t, examples(t),
		"--grpc-address=unix:"+socket, "--grpc-infer-response-compression-level=high",
		"--grpc-restricted-protocol=model-repository:key=secret", "--http-restricted-api=model-repository,statistics:key=secret")
	python(t, []string{"GRPC_URL=unix:" + socket, "HTTP_URL=" + s.HTTP}, "test/e2e/clients/test_connections.py", "-v", "Connections")
}
