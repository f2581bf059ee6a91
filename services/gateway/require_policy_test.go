package gateway_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
	"github.com/nereid-serving/nereid/services/gateway"
)

// logged waits for a log entry, and returns how many there are.
func logged(t *testing.T, logs *observer.ObservedLogs, message string) int {
	t.Helper()
	for t.Context().Err() == nil {
		if n := logs.FilterMessageSnippet(message).Len(); n > 0 {
			return n
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatalf("it is not logged: %s", message)
	return 0
}

func publish(h *harness, text string) {
	put(h, bus.Policies, "current", &nereidv1.PolicyValue{Schema: nereidv1.Schema, Text: text, Source: "policy.yaml"})
}

func requiring(value string) func(*gateway.Config) {
	return func(c *gateway.Config) { c.RequirePolicy = value }
}

// refusesConnections reports whether the gateway is still not listening after a moment.
func (h *harness) refusesConnections() {
	h.t.Helper()
	select {
	case <-h.gateway.Bound():
		h.t.Error("the gateway listens before it has a policy")
	case <-time.After(300 * time.Millisecond):
	}
}

// A policy in the bucket is required even if the gateway cannot use it.
func TestAGatewayWaitsForThePolicyThatWasPublished(t *testing.T) {
	for _, required := range []string{"auto", "true"} {
		t.Run(required, func(t *testing.T) {
			b := openBus(t, bus.Config{Lease: time.Hour})
			publish(&harness{t: t, bus: b}, broken)
			core, logs := observer.New(zapcore.WarnLevel)
			h := begin(t, gateway.Deps{Bus: b, Log: zap.New(core)}, nil, requiring(required))
			logged(t, logs, "the policy is refused")
			h.refusesConnections()
			publish(h, forbidding)
			h.listens()
			h.serveModel()
			h.infers(http.StatusForbidden)
		})
	}
}

func TestAGatewayThatNeedsAPolicyWaitsForTheFirst(t *testing.T) {
	b := openBus(t, bus.Config{Lease: time.Hour})
	core, logs := observer.New(zapcore.WarnLevel)
	h := begin(t, gateway.Deps{Bus: b, Log: zap.New(core)}, nil, requiring("true"))
	logged(t, logs, "before the registry has published a policy")
	h.refusesConnections()
	publish(h, allowing)
	h.listens()
	h.serveModel()
	h.infers(http.StatusOK)
}

// Once a policy is published to gateways that had none, calls are refused until there is a valid one. Health
// probes are always answered.
func TestCallsAreRefusedUnderAPolicyThatCannotBeRead(t *testing.T) {
	h := start(t, nil)
	h.serveModel()
	h.infers(http.StatusOK)
	publish(h, broken)
	h.infers(http.StatusServiceUnavailable)
	if status, body := h.do(http.MethodGet, "/v2/models/m/config", ""); status != http.StatusServiceUnavailable || !strings.Contains(body, "no valid policy") {
		t.Errorf("another call: %d %s", status, body)
	}
	probes := func(want map[string]int) {
		t.Helper()
		for path, want := range want {
			if status, body := h.do(http.MethodGet, path, ""); status != want {
				t.Errorf("%s: %d %s, want %d", path, status, body, want)
			}
		}
	}
	probes(map[string]int{"/v2/health/live": 200, "/v2/health/ready": 400, "/v2/models/m/ready": 400})
	h.announces(nereidv1.State_STATE_LOADING)
	publish(h, forbidding)
	h.infers(http.StatusForbidden)
	probes(map[string]int{"/v2/health/live": 200, "/v2/health/ready": 200, "/v2/models/m/ready": 200})
	h.announces(nereidv1.State_STATE_READY)
	publish(h, allowing)
	h.infers(http.StatusOK)
}

// announces waits until the gateway's lease shows the state.
func (h *harness) announces(want nereidv1.State) {
	h.t.Helper()
	bucket, err := bus.NewBucket(h.bus, bus.Gateways, bus.Values[*nereidv1.ServiceValue]())
	if err != nil {
		h.t.Fatal(err)
	}
	got := nereidv1.State(-1)
	for range 2000 {
		keys, err := bucket.Keys(h.t.Context())
		if err != nil || len(keys) != 1 {
			h.t.Fatal(keys, err)
		}
		entry, err := bucket.Get(h.t.Context(), keys[0])
		if err != nil {
			h.t.Fatal(err)
		}
		if got = entry.Value.GetState(); got == want {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	h.t.Errorf("the lease says %v, want %v", got, want)
}

func TestAGatewayThatNeedsNoPolicyServesWithoutOne(t *testing.T) {
	b := openBus(t, bus.Config{Lease: time.Hour})
	publish(&harness{t: t, bus: b}, broken)
	h := startWith(t, gateway.Deps{Bus: b}, nil, requiring("false"))
	h.serveModel()
	h.infers(http.StatusOK)
	publish(h, forbidding)
	h.infers(http.StatusForbidden)
}

// A gateway keeps its policy while NATS is unavailable, and when the key is deleted.
func TestAGatewayKeepsItsPolicyWithoutTheStore(t *testing.T) {
	store := openBus(t, bus.Config{Listen: "127.0.0.1:0"})
	b, err := bus.Open(t.Context(), bus.Config{URL: store.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	publish(&harness{t: t, bus: b}, forbidding)
	h := startWith(t, gateway.Deps{Bus: b}, nil)
	h.serveModel()
	h.infers(http.StatusForbidden)
	bucket, err := bus.NewBucket(b, bus.Policies, bus.Values[*nereidv1.PolicyValue]())
	if err != nil {
		t.Fatal(err)
	}
	entry, err := bucket.Get(t.Context(), bus.CurrentPolicy)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Delete(t.Context(), bus.CurrentPolicy, entry.Revision); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := bucket.Get(ctx, bus.CurrentPolicy); err == nil || errors.Is(err, bus.ErrNotFound) {
		t.Fatalf("NATS is not away: %v", err)
	}
	h.infers(http.StatusForbidden)
}

// A gateway that cannot read the bucket does not know whether there is a policy.
func TestAGatewayThatCannotReadTheBucketAcceptsNoCalls(t *testing.T) {
	b := openBus(t, bus.Config{Listen: "127.0.0.1:0", Lease: time.Hour})
	client, err := nats.Connect(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	js, err := jetstream.New(client)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), bus.StreamName(bus.Policies)); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zapcore.WarnLevel)
	h := begin(t, gateway.Deps{Bus: b, Log: zap.New(core)}, nil)
	logged(t, logs, "it is not known whether the registry has published a policy") // after 10 s
	h.refusesConnections()
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.listens()
	h.serveModel()
	h.infers(http.StatusOK)
}

// A policy whose issuers' keys cannot be read is retried, and keys that change are reloaded.
func TestAPolicyIsTriedAgainUntilItsKeysAreThere(t *testing.T) {
	jwks := filepath.Join(t.TempDir(), "jwks.json")
	withTokens := "version: 1\ntenants: {acme: {subjects: [s]}}\ntokens: [{issuer: 'https://id', jwks: " + jwks + "}]\n"
	b64 := base64.RawURLEncoding.EncodeToString
	key := func() ed25519.PrivateKey {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		set, err := json.Marshal(map[string]any{"keys": []any{map[string]any{"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": b64(key.Public().(ed25519.PublicKey))}}}) //nolint:forcetypeassert // it is one
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(jwks, set, 0o600); err != nil {
			t.Fatal(err)
		}
		return key
	}
	core, logs := observer.New(zapcore.ErrorLevel)
	h := startWith(t, gateway.Deps{Bus: openBus(t, bus.Config{Lease: time.Hour}), Log: zap.New(core)}, nil)
	h.serveModel()
	publish(h, withTokens)
	logged(t, logs, "the policy is refused")
	h.infers(http.StatusServiceUnavailable)
	for range 2 {
		signer := key()
		text := b64([]byte(`{"alg":"EdDSA","kid":"1"}`)) + "." + b64([]byte(`{"iss":"https://id","sub":"s","exp":99999999999}`))
		token := text + "." + b64(ed25519.Sign(signer, []byte(text)))
		for status := 0; status != http.StatusOK; <-time.After(50 * time.Millisecond) {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+h.http+"/v2/models/m/infer", strings.NewReader(inferBody))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer "+token)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if status = response.StatusCode; status == http.StatusOK {
				<-h.echo.submitted
			}
		}
	}
	http.DefaultClient.CloseIdleConnections()
	if n := logs.FilterMessageSnippet("the policy is refused").Len(); n != 1 {
		t.Errorf("that the policy is refused is logged %d times", n)
	}
}
