package tenants_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/policy"
	"github.com/nereid-serving/nereid/services/gateway/internal/tenants"
	"github.com/nereid-serving/nereid/services/gateway/internal/tokens"
)

// caller is a call with headers and the names of a certificate.
type caller struct {
	headers map[string]string
	names   []string
}

func (c caller) Header(name string) []string {
	if v, ok := c.headers[name]; ok {
		return []string{v}
	}
	return nil
}

func (c caller) Names() []string { return c.names }

type nobody struct{}

func (nobody) Shadowed(string, errs.Reason) {}
func (nobody) Retried(string, bool)         {}

func read(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, findings := policy.Read([]byte(text))
	if p == nil {
		t.Fatal(findings)
	}
	return p
}

// keys are those of an issuer, as a key set.
func keys(t *testing.T) (key *ecdsa.PrivateKey, set []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	jwk, err := jwkset.NewJWKFromKey(key.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: "one"}})
	if err != nil {
		t.Fatal(err)
	}
	set, err = json.Marshal(jwkset.JWKSMarshal{Keys: []jwkset.JWKMarshal{jwk.Marshal()}})
	if err != nil {
		t.Fatal(err)
	}
	return key, set
}

func sign(t *testing.T, key *ecdsa.PrivateKey, claims jwt.MapClaims) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodES256, claims)
	token.Header["kid"] = "one"
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const issuer = `
version: 1
tenants: {acme: {subjects: ["service-*"], keys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}], certificates: ["*.acme"]}}
tokens: [{issuer: "https://id", audience: nereid, jwks: JWKS}]
`

func TestTokensAreVerified(t *testing.T) {
	key, set := keys(t)
	other, _ := keys(t)
	served := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served++
		_, _ = w.Write(set)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, set, 0o600); err != nil {
		t.Fatal(err)
	}
	soon := time.Now().Add(time.Hour).Unix()
	good := jwt.MapClaims{"iss": "https://id", "aud": "nereid", "sub": "service-7", "exp": soon}
	with := func(claim string, v any) jwt.MapClaims {
		c := jwt.MapClaims{}
		for k, was := range good {
			c[k] = was
		}
		if c[claim] = v; v == nil {
			delete(c, claim)
		}
		return c
	}
	none, err := jwt.NewWithClaims(jwt.SigningMethodNone, good).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	for name, jwks := range map[string]string{"of a URL": server.URL, "of a file": file} {
		t.Run(name, func(t *testing.T) {
			p := read(t, strings.Replace(issuer, "JWKS", jwks, 1))
			v, err := tokens.New(t.Context(), p.Issuers, func(string, error) {})
			if err != nil {
				t.Fatal(err)
			}
			all := tenants.New(nobody{}, time.Now)
			all.Set(p, v)
			for _, tt := range []struct{ name, token, why string }{
				{"good", sign(t, key, good), ""},
				{"good, again", sign(t, key, good), ""},
				{"of another key", sign(t, other, good), "signature is wrong"},
				{"without a signature", none, "refused"},
				{"expired", sign(t, key, with("exp", time.Now().Add(-time.Hour).Unix())), "expired"},
				{"without an end", sign(t, key, with("exp", nil)), "no expiry"},
				{"for others", sign(t, key, with("aud", "web")), "another audience"},
				{"of another issuer", sign(t, key, with("iss", "https://evil")), "none of the policy's"},
				{"of a stranger", sign(t, key, with("sub", "user-1")), "no tenant's"},
				{"not valid yet", sign(t, key, with("nbf", soon)), "not valid yet"},
				{"garbage", "a.b.c", "malformed"},
			} {
				who, err := all.Current().Identify(caller{headers: map[string]string{"authorization": "Bearer " + tt.token}})
				switch {
				case tt.why == "" && (err != nil || who.Name != "acme"):
					t.Errorf("%s: %v, %v", tt.name, who, err)
				case tt.why != "" && (errs.Of(err) != errs.TokenInvalid || !strings.Contains(errs.From(err).Msg, tt.why)):
					t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
				}
				if err != nil && strings.Contains(errs.From(err).Msg, tt.token) {
					t.Errorf("%s: the token is in %v", tt.name, err)
				}
			}
		})
	}
	if served == 0 {
		t.Error("the keys were not read from their URL")
	}
}

func TestKeysThatCannotBeReadAreAnError(t *testing.T) {
	p := read(t, strings.Replace(issuer, "JWKS", "/none/jwks.json", 1))
	if _, err := tokens.New(t.Context(), p.Issuers, nil); errs.Of(err) != errs.PolicyInvalid {
		t.Error(err)
	}
}

func TestURLsThatDoNotAnswerAreTriedAgain(t *testing.T) {
	p := read(t, strings.Replace(issuer, "JWKS", "http://127.0.0.1:1/jwks.json", 1))
	failed := make(chan error, 10)
	v, err := tokens.New(t.Context(), p.Issuers, func(_ string, err error) { failed <- err })
	if err != nil {
		t.Fatal(err)
	}
	key, _ := keys(t)
	_, _, _, err = v.Verify(sign(t, key, jwt.MapClaims{"iss": "https://id", "aud": "nereid", "exp": time.Now().Add(time.Hour).Unix()}))
	if errs.Of(err) != errs.TokenInvalid {
		t.Errorf("without keys a token is %v", err)
	}
	if err := <-failed; err == nil || errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestCallersAreIdentifiedByWhatTheySend(t *testing.T) {
	all := tenants.New(nobody{}, time.Now)
	text := issuer[:strings.Index(issuer, "tokens:")]
	all.Set(read(t, text), nil)
	for _, tt := range []struct {
		name   string
		caller caller
		tenant string
		reason errs.Reason
	}{
		{"a bearer key", caller{headers: map[string]string{"authorization": "bearer foo"}}, "acme", ""},
		{"a key in a header", caller{headers: map[string]string{"x-api-key": "foo"}}, "acme", ""},
		{"a certificate", caller{names: []string{"web.acme"}}, "acme", ""},
		{"a key beside a certificate", caller{headers: map[string]string{"x-api-key": "no"}, names: []string{"web.acme"}}, "", errs.TokenInvalid},
		{"a foreign certificate", caller{names: []string{"web.other"}}, "", errs.TokenMissing},
		{"another scheme", caller{headers: map[string]string{"authorization": "Basic Zm9v"}}, "", errs.TokenInvalid},
		{"a key of megabytes", caller{headers: map[string]string{"x-api-key": strings.Repeat("x", 1<<20)}}, "", errs.TokenInvalid},
		{"nothing", caller{}, "", errs.TokenMissing},
	} {
		who, err := all.Current().Identify(tt.caller)
		if errs.Of(err) != tt.reason || err == nil && who.Name != tt.tenant {
			t.Errorf("%s: %v, %v", tt.name, who, err)
		}
	}
}

func TestWhatWasUsedOutlivesAPolicy(t *testing.T) {
	now := time.Unix(1000, 0)
	all := tenants.New(nobody{}, func() time.Time { return now })
	policed := func(perSecond string) *tenants.Tenant {
		all.Set(read(t, "version: 1\ntiers: {free: {limits: {requests_per_second: "+perSecond+"}}}\nanonymous: {tier: free}"), nil)
		who, err := all.Current().Identify(caller{})
		if err != nil {
			t.Fatal(err)
		}
		return who
	}
	take := func(who *tenants.Tenant) (n int) {
		for n < 1000 {
			if _, err := who.Reserve(t.Context(), tenants.Demand{}); err != nil {
				break
			}
			n++
		}
		return n
	}
	if n := take(policed("5")); n != 5 {
		t.Errorf("%d of 5", n)
	}
	if n := take(policed("10")); n != 0 {
		t.Errorf("%d at once under a new policy", n)
	}
	now = now.Add(time.Second)
	if n := take(policed("10")); n != 10 {
		t.Errorf("%d after a second of 10", n)
	}
}

func TestConditionsDoNotSeeCredentials(t *testing.T) {
	seen := tenants.Headers(caller{headers: map[string]string{"authorization": "Bearer foo", "x-api-key": "foo", "cookie": "a=b", "x-user": "7"}})
	for _, name := range []string{"authorization", "x-api-key", "cookie"} {
		if v := seen(name); v != nil {
			t.Errorf("%s: %v", name, v)
		}
	}
	if v := seen("x-user"); len(v) != 1 {
		t.Errorf("x-user: %v", v)
	}
}

func BenchmarkReserve(b *testing.B) {
	p, _ := policy.Read([]byte("version: 1\ntiers: {free: {limits: {requests_per_second: 1e12, cost_units_per_second: 1e12, concurrency: 10}}}\nanonymous: {tier: free}"))
	all := tenants.New(nobody{}, time.Now)
	all.Set(p, nil)
	b.ReportAllocs()
	for b.Loop() {
		who, err := all.Current().Identify(caller{})
		if err != nil {
			b.Fatal(err)
		}
		r, err := who.Reserve(b.Context(), tenants.Demand{Cost: 1})
		if err != nil {
			b.Fatal(err)
		}
		r.Settle(1)
	}
}

// Before a model's requests have said what they cost, it is predicted by what is kept of
// its executions, and by the nearest size.
func TestPredictionsBeginWithWhatIsKept(t *testing.T) {
	var c tenants.Costs
	model := infer.ModelID{Name: "m"}
	if got := c.Predict(model, 100, 1); got != 0 {
		t.Errorf("%v for a model of which nothing is known", got)
	}
	kept := []infer.Cost{
		{Device: "cpu", Magnitude: 4, BatchSize: 8, Executions: 30, Mean: 16 * time.Millisecond},
		{Device: "cpu", Magnitude: 16, BatchSize: 1, Executions: 2, Mean: 50 * time.Millisecond},
	}
	c.Recall(model, kept)
	for _, tt := range []struct {
		elements, rows int64
		want           float64
	}{{8, 1, 2}, {24, 3, 6}, {1, 1, 2}, {1 << 15, 1, 50}, {1 << 30, 1, 50}} {
		if got := c.Predict(model, tt.elements, tt.rows); got != tt.want {
			t.Errorf("%d elements in %d rows: %v, want %v", tt.elements, tt.rows, got, tt.want)
		}
	}
	for range 100 {
		c.Learn(model, 8, 1, 2, 3)
	}
	c.Recall(model, kept)
	if got := c.Predict(model, 8, 1); got < 2.9 {
		t.Errorf("%v after requests that cost 3", got)
	}
}
