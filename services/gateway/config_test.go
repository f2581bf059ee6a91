package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/keepalive"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/serve"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// configured parses a command line, for which kong calls Validate.
func configured(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	var c Config
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(args)
	c.ID, c.ServerName = "gateway", "triton"
	return c, err
}

func TestDefaultIsThatOfTheFlags(t *testing.T) {
	c, err := configured(t)
	if diff := cmp.Diff(c, Default()); diff != "" || err != nil {
		t.Errorf("%v (-flags +Default):\n%s", err, diff)
	}
}

func TestConnectionsAreAsTheFlagsSay(t *testing.T) {
	c, err := configured(t, "--reuse-http-port=true", "--http-restricted-api=health,trace:h=v", "--reuse-grpc-port=true",
		"--grpc-address=unix:/run/s", "--grpc-restricted-protocol=logging:a=b", "--grpc-restricted-protocol=inference:c=d",
		"--grpc-use-ssl-mutual=true", "--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r",
		"--grpc-keepalive-time=1", "--grpc-keepalive-timeout=2", "--grpc-max-connection-age=5", "--grpc-max-connection-age-grace=6")
	if err != nil {
		t.Fatal(err)
	}
	if want := (serve.Listener{Enabled: true, Address: "0.0.0.0", Port: 8000, Reuse: true}); c.http() != want {
		t.Errorf("HTTP listens as %+v, want %+v", c.http(), want)
	}
	if want := (serve.Listener{Enabled: true, Address: "unix:/run/s", Port: 8001, Reuse: true}); c.grpc() != want {
		t.Errorf("gRPC listens as %+v, want %+v", c.grpc(), want)
	}
	got, err := restrictions("--grpc-restricted-protocol", c.Connections.GRPCRestrict)
	want := core.Restrictions{"logging": {Header: "a", Value: "b"}, "inference": {Header: "c", Value: "d"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("restrictions: %v (-want +got):\n%s", err, diff)
	}
	tls, err := c.Connections.tls()
	if diff := cmp.Diff(&serve.TLS{Certificate: "c", Key: "k", Roots: "r", Mutual: true}, tls); diff != "" || err != nil {
		t.Errorf("TLS: %v (-want +got):\n%s", err, diff)
	}
	pings := keepalive.ServerParameters{
		Time: time.Millisecond, Timeout: 2 * time.Millisecond, MaxConnectionAge: 5 * time.Millisecond, MaxConnectionAgeGrace: 6 * time.Millisecond,
	}
	if diff := cmp.Diff(pings, c.Connections.keepalive()); diff != "" {
		t.Errorf("keep-alive (-want +got):\n%s", diff)
	}
}

func TestConnectionFlagsSayWhatIsMissing(t *testing.T) {
	for want, args := range map[string][]string{
		"--grpc-server-cert=FILE":   {"--grpc-use-ssl=true"},
		"--grpc-root-cert=FILE":     {"--grpc-use-ssl-mutual=true", "--grpc-server-cert=c", "--grpc-server-key=k"},
		"--http-restricted-api: ":   {"--http-restricted-api=everything:a=b"},
		"--grpc-restricted-protoco": {"--grpc-restricted-protocol=health"},
	} {
		if _, err := configured(t, args...); errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", args, err, want)
		}
	}
}
