package process_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/libs/testkit/port"
)

// service is a program whose service the test makes.
type service struct {
	Settings process.Settings     `embed:""`
	Peers    process.PeerSettings `embed:""`
}

func parse(t *testing.T, args ...string) *service {
	t.Helper()
	s, err := tryParse(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryParse(t *testing.T, args ...string) (*service, error) {
	t.Helper()
	var s service
	parser, err := kong.New(&s, kong.Vars{"metrics_port": "0", "metrics_address": "everywhere", "listen": "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(append([]string{"--allow-metrics=false"}, args...))
	return &s, err
}

func openBus(t *testing.T, listen string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestMisfitsAreNamed(t *testing.T) {
	for want, args := range map[string][]string{
		"--cluster-authority":         {"--cluster-certificate=c"},
		"--nats-url is empty":         {"--nats-url="},
		"no slash":                    {"--id=a/b"},
		"the scheme http://":          {"--nats-url=nats://a:1,http://b:2"},
		"--start-timeout-secs":        {"--start-timeout-secs=-1"},
		`cannot have the label "x"`:   {"--metrics-label=x=y"},
		"--listen=somewhere: want HO": {"--listen=somewhere"},
	} {
		if _, err := tryParse(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
	if _, err := tryParse(t); err != nil {
		t.Error(err)
	}
}

func TestNoNATSIsAnErrorWithARemedy(t *testing.T) {
	address := port.Address(t)
	s := parse(t, "--start-timeout-secs=0", "--nats-url=nats://user:secret@"+address)
	err := s.Settings.Serve(t.Context(), "", func(context.Context, *process.Process) (process.Service, error) {
		t.Error("the service was made without NATS")
		return process.Service{}, nil
	})
	if errs.Of(err) != errs.StateUnavailable || !strings.Contains(err.Error(), "nereid bus") || !strings.Contains(err.Error(), address) {
		t.Errorf("%v", err)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password is shown: %v", err)
	}
}

// TestNoAgreementOnTLSNamesItsSettings has a server that speaks plain text.
func TestNoAgreementOnTLSNamesItsSettings(t *testing.T) {
	address := strings.TrimPrefix(openBus(t, "127.0.0.1:0").Addr(), "nats://")
	s := parse(t, "--start-timeout-secs=0", "--nats-url=tls://"+address)
	err := s.Settings.Serve(t.Context(), "", nil)
	if !errors.Is(err, bus.ErrTLS) || !strings.Contains(err.Error(), "--cluster-authority") || strings.Contains(err.Error(), "nereid bus") {
		t.Errorf("%v", err)
	}
}

// TestTheEndOfACertificateIsTold holds for certificates that have ended, and
// for those that will before anybody would notice.
func TestTheEndOfACertificateIsTold(t *testing.T) {
	for want, left := range map[string]time.Duration{"has expired": -time.Hour, "expires soon": 24 * time.Hour, "": 1000 * time.Hour} {
		dir := t.TempDir()
		certificate, key := newCertificate(t, dir, time.Now().Add(left))
		file := filepath.Join(dir, "log")
		s := parse(t, "--start-timeout-secs=0", "--nats-url=nats://"+port.Address(t), "--log-file="+file,
			"--cluster-certificate="+certificate, "--cluster-key="+key, "--cluster-authority="+certificate)
		if err := s.Settings.Serve(t.Context(), "", nil); errs.Of(err) != errs.StateUnavailable {
			t.Errorf("%v", err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if told := strings.Contains(string(text), certificate); told != (want != "") || !strings.Contains(string(text), want) {
			t.Errorf("ends in %s, want %q: %s", left, want, text)
		}
	}
}

// newCertificate makes a certificate that signs itself and ends then.
func newCertificate(t *testing.T, dir string, end time.Time) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.Add(-10000 * time.Hour), NotAfter: end, IsCA: true, BasicConstraintsValid: true}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key = filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certificate: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

// TestCredentialsThatCannotBeUsedAreNotWaitedFor has a start that would wait for
// longer than the test may take.
func TestCredentialsThatCannotBeUsedAreNotWaitedFor(t *testing.T) {
	s := parse(t, "--start-timeout-secs=100000", "--nats-url=nats://"+port.Address(t), "--nats-credentials=/no/such/key")
	err := s.Settings.Serve(t.Context(), "", func(context.Context, *process.Process) (process.Service, error) {
		t.Error("the service was made without NATS")
		return process.Service{}, nil
	})
	if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "/no/such/key") {
		t.Errorf("%v", err)
	}
}

// TestServiceWaitsForNATSServesAndDrains runs a service's whole life, which
// begins before NATS is there.
func TestServiceWaitsForNATSServesAndDrains(t *testing.T) {
	address := port.Address(t)
	s := parse(t, "--nats-url=nats://"+address, "--id=one", "--allow-metrics=true", "--metrics-address=127.0.0.1", "--metrics-port=0", "--log-file="+filepath.Join(t.TempDir(), "log"))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var order []string
	running := make(chan *process.Peers)
	lacks := errors.New("no models")
	ended := make(chan error, 1)
	go func() {
		ended <- s.Settings.Serve(ctx, "127.0.0.1", func(ctx context.Context, p *process.Process) (process.Service, error) {
			peers, err := p.Listen(ctx, &s.Peers)
			if err != nil || p.ID != "one" {
				t.Errorf("%s: %v", p.ID, err)
			}
			server := grpc.NewServer()
			return process.Service{Ready: func() error { return lacks }, Parts: []lifecycle.Part{
				{Name: "peers", Run: func(ctx context.Context) error {
					err := peers.Serve(ctx, server)
					order = append(order, "peers")
					return err
				}},
				{Name: "work", Run: func(ctx context.Context) error {
					running <- peers
					<-ctx.Done()
					order = append(order, "work")
					return nil
				}},
			}}, nil
		})
	}()
	openBus(t, address)
	peers := <-running
	c, err := net.Dial("tcp", peers.Address())
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if strings.Join(order, " ") != "work peers" {
		t.Errorf("stopped in the order %v", order)
	}
}

func TestASignalDuringTheWaitForNATSIsNoError(t *testing.T) {
	s := parse(t, "--nats-url=nats://"+port.Address(t), "--log-file="+filepath.Join(t.TempDir(), "log"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Settings.Serve(ctx, "", nil); err != nil {
		t.Error(err)
	}
}

func TestAdvertisedIsWhereOthersFindTheListener(t *testing.T) {
	b := openBus(t, "127.0.0.1:0")
	there, err := bus.Open(t.Context(), bus.Config{URL: b.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	p := &process.Process{Bus: there}
	socket := "unix:" + filepath.Join(t.TempDir(), "s")
	tests := map[string]struct {
		args []string
		want string
	}{
		"as bound":        {nil, "127.0.0.1:"},
		"every interface": {[]string{"--listen=0.0.0.0:0"}, "127.0.0.1:"},
		"a socket":        {[]string{"--listen=" + socket, "--listen=127.0.0.1:0"}, socket},
		"as asked":        {[]string{"--advertise=host:1"}, "host:1"},
	}
	for name, tt := range tests {
		s := parse(t, tt.args...)
		peers, err := p.Listen(t.Context(), &s.Peers)
		if err != nil {
			t.Fatal(err)
		}
		if got := peers.Address(); !strings.HasPrefix(got, tt.want) || strings.HasSuffix(got, ":0") {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := peers.Serve(ctx, grpc.NewServer()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := parse(t, "--listen="+socket, "--listen=256.0.0.1:0")
	if _, err := p.Listen(t.Context(), &s.Peers); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("%v", err)
	}
}
