package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/services/gateway"
)

// configured is the configuration of a command line.
func configured(t *testing.T, args ...string) (gateway.Config, error) {
	t.Helper()
	var s gateway.Settings
	parser, err := kong.New(&s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	c := gateway.Default()
	err = s.Configure(&c)
	return c, err
}

func TestConnectionsAreAsTheFlagsSay(t *testing.T) {
	plain, err := configured(t)
	if err != nil {
		t.Fatal(err)
	}
	want := gateway.Default()
	if diff := cmp.Diff(want, plain); diff != "" {
		t.Errorf("without flags (-want +got):\n%s", diff)
	}
	got, err := configured(t, "--reuse-http-port=true", "--http-restricted-api=health,trace:h=v", "--reuse-grpc-port=true",
		"--grpc-address=unix:/run/s", "--grpc-restricted-protocol=logging:a=b", "--grpc-restricted-protocol=inference:c=d",
		"--grpc-use-ssl-mutual=true", "--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r",
		"--grpc-infer-response-compression-level=low", "--grpc-keepalive-time=1", "--grpc-keepalive-timeout=2",
		"--grpc-keepalive-permit-without-calls=true", "--grpc-http2-min-recv-ping-interval-without-data=0",
		"--grpc-max-connection-age=5", "--grpc-max-connection-age-grace=6")
	if err != nil {
		t.Fatal(err)
	}
	want.HTTP.Reuse, want.HTTP.Restricted = true, gateway.Restrictions{"health": {Header: "h", Value: "v"}, "trace": {Header: "h", Value: "v"}}
	want.GRPC = gateway.GRPC{
		Listener:   gateway.Listener{Enabled: true, Address: "unix:/run/s", Port: 8001, Reuse: true},
		TLS:        &gateway.TLS{Certificate: "c", Key: "k", Roots: "r", Mutual: true},
		Restricted: gateway.Restrictions{"logging": {Header: "a", Value: "b"}, "inference": {Header: "c", Value: "d"}},
		Compress:   true,
		Pings:      gateway.Pings{Interval: time.Millisecond, Timeout: 2 * time.Millisecond, WithoutCalls: true},
		MaxAge:     5 * time.Millisecond, Grace: 6 * time.Millisecond,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with flags (-want +got):\n%s", diff)
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
