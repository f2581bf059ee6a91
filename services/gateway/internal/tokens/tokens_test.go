package tokens

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// signed is a token with such claims.
func signed(t testing.TB, algorithm jose.SignatureAlgorithm, key any, kid, claims string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	object, err := signer.Sign([]byte(claims))
	if err != nil {
		t.Fatal(err)
	}
	text, err := object.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// forged is a token with a header and claims of any text, and a signature of both.
func forged(header, claims string, sign func(input []byte) []byte) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	return text + "." + base64.RawURLEncoding.EncodeToString(sign([]byte(text)))
}

// es256 signs as ES256 has it.
func es256(t testing.TB, key *ecdsa.PrivateKey) func([]byte) []byte {
	return func(input []byte) []byte {
		sum := sha256.Sum256(input)
		r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
}

func hs256(secret []byte) func([]byte) []byte {
	return func(input []byte) []byte {
		h := hmac.New(sha256.New, secret)
		_, _ = h.Write(input)
		return h.Sum(nil)
	}
}

func unsigned([]byte) []byte { return nil }

// verifier is one of the issuers https://id, for the audience nereid, and https://any.
func verifier(t testing.TB, set []byte) *Verifier {
	t.Helper()
	file := filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(file, set, 0o600); err != nil {
		t.Fatal(err)
	}
	v := New([]policy.Issuer{{Name: "https://id", Audience: "nereid", JWKS: file}, {Name: "https://any", JWKS: file}}, func(string, error) {})
	if err := v.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return v
}

// claimsWith are good claims, with others in the place of some: nil leaves one out.
func claimsWith(t testing.TB, others map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": "https://id", "aud": "nereid", "sub": "service-7", "exp": time.Now().Add(time.Hour).Unix()}
	for name, v := range others {
		if all[name] = v; v == nil {
			delete(all, name)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSignaturesOfEveryAlgorithmAreVerified(t *testing.T) {
	r, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := []crypto.Signer{r, ed}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	var public []any
	for _, key := range keys {
		public = append(public, key.Public())
	}
	v := verifier(t, setOf(t, public...))
	of := map[jose.SignatureAlgorithm]int{
		jose.RS256: 0, jose.RS384: 0, jose.RS512: 0, jose.PS256: 0, jose.PS384: 0, jose.PS512: 0, jose.EdDSA: 1, jose.ES256: 2, jose.ES384: 3, jose.ES512: 4,
	}
	if len(of) != len(algorithms()) {
		t.Errorf("%d algorithms are tried of %d", len(of), len(algorithms()))
	}
	for algorithm, i := range of {
		token := signed(t, algorithm, keys[i], fmt.Sprint(i), claimsWith(t, nil))
		by, claims, expires, err := v.Verify(token)
		if err != nil || by.Name != "https://id" || claims["sub"] != "service-7" || time.Until(expires) < 59*time.Minute || time.Until(expires) > time.Hour {
			t.Errorf("%s: %v, %v, %v, %v", algorithm, by, claims, expires, err)
		}
		if _, _, _, err := v.Verify(token[:len(token)-6] + "AAAAAA"); errs.Of(err) != errs.TokenInvalid {
			t.Errorf("%s, another signature: %v", algorithm, err)
		}
	}
}

func TestClaimsAreChecked(t *testing.T) {
	key, now := ecKey(t), time.Now()
	v := verifier(t, setOf(t, key.Public()))
	in := func(d time.Duration) any { return now.Add(d).Unix() }
	for _, tt := range []struct {
		name   string
		claims map[string]any
		why    string // empty: accepted
	}{
		{"as they should be", nil, ""},
		{"for several audiences", map[string]any{"aud": []string{"web", "nereid"}}, ""},
		{"for no audience of an issuer that needs none", map[string]any{"iss": "https://any", "aud": nil}, ""},
		{"of clocks that are off", map[string]any{"exp": in(-10 * time.Second), "nbf": in(10 * time.Second)}, ""},
		{"with parts of seconds", map[string]any{"exp": float64(now.Unix()) + 60.5}, ""},
		{"issued in the future", map[string]any{"iat": in(time.Hour)}, ""},
		{"with claims that nobody asks for", map[string]any{"jti": 7, "sub": []int{1}, "azp": nil, "deep": map[string]any{"x": []any{1, "y"}}}, ""},
		{"expired", map[string]any{"exp": in(-time.Minute)}, "it has expired"},
		{"expired since 1970", map[string]any{"exp": 0}, "it has expired"},
		{"that never expire", map[string]any{"exp": nil}, "it has no expiry"},
		{"that expire at null", map[string]any{"exp": json.RawMessage("null")}, "it has no expiry"},
		{"that expire after the end of time", map[string]any{"exp": 1e300}, "it is malformed"},
		{"that expire at a text", map[string]any{"exp": "99999999999"}, "it is malformed"},
		{"that expire at true", map[string]any{"exp": true}, "it is malformed"},
		{"not valid yet", map[string]any{"nbf": in(time.Minute)}, "it is not valid yet"},
		{"valid from a text on", map[string]any{"nbf": "0"}, "it is malformed"},
		{"for another audience", map[string]any{"aud": "web"}, "it is for another audience"},
		{"for an audience that begins alike", map[string]any{"aud": "nereid-admin"}, "it is for another audience"},
		{"for no audience", map[string]any{"aud": nil}, "it is for another audience"},
		{"for an empty list", map[string]any{"aud": []string{}}, "it is for another audience"},
		{"for a number", map[string]any{"aud": 1}, "it is malformed"},
		{"for numbers", map[string]any{"aud": []int{1}}, "it is malformed"},
		{"of another issuer", map[string]any{"iss": "https://evil"}, "none of the policy's"},
		{"of an issuer that is spelled otherwise", map[string]any{"iss": "https://id/"}, "none of the policy's"},
		{"of no issuer", map[string]any{"iss": nil}, "none of the policy's"},
		{"of issuers", map[string]any{"iss": []string{"https://id"}}, "it is malformed"},
		{"of an issuer of kilobytes", map[string]any{"iss": strings.Repeat("i", 8<<10)}, "none of the policy's"},
	} {
		token := signed(t, jose.ES256, key, "0", claimsWith(t, tt.claims))
		_, _, _, err := v.Verify(token)
		switch {
		case tt.why == "" && err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case tt.why != "" && (errs.Of(err) != errs.TokenInvalid || !strings.Contains(errs.From(err).Msg, tt.why)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
		case err != nil && (len(errs.From(err).Msg) > 200 || strings.Contains(errs.From(err).Msg, token)):
			t.Errorf("%s: the client is shown %s", tt.name, errs.From(err).Msg)
		}
	}
}

// What an attacker can make without a key of the issuer's is refused.
func TestForgedTokensAreRefused(t *testing.T) {
	key, other := ecKey(t), ecKey(t)
	encryption := jose.JSONWebKey{Key: other.Public(), KeyID: "encrypts", Use: "enc"}
	for384 := jose.JSONWebKey{Key: other.Public(), KeyID: "384", Algorithm: "ES384"}
	secret := jose.JSONWebKey{Key: []byte("the secret"), KeyID: "secret"}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "0"}, encryption, for384, secret}})
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	own, err := json.Marshal(jose.JSONWebKey{Key: other.Public()})
	if err != nil {
		t.Fatal(err)
	}
	v, claims := verifier(t, set), claimsWith(t, nil)
	if _, _, _, err := v.Verify(forged(`{"alg":"ES256","kid":"0"}`, claims, es256(t, key))); err != nil {
		t.Fatal("a token that is as it should be:", err)
	}
	const unknown, wrong, algorithm, malformed = "no such key", "signature is wrong", "none of RS", "malformed"
	for _, tt := range []struct{ name, token, why string }{
		{"without a signature", forged(`{"alg":"none"}`, claims, unsigned), algorithm},
		{"without a signature, spelled otherwise", forged(`{"alg":"NoNe","kid":"0"}`, claims, unsigned), algorithm},
		{"without an algorithm", forged(`{"kid":"0"}`, claims, es256(t, key)), algorithm},
		{"with an algorithm that is a number", forged(`{"alg":256,"kid":"0"}`, claims, es256(t, key)), malformed},
		{"with an empty signature", forged(`{"alg":"ES256","kid":"0"}`, claims, unsigned), wrong},
		{"with a signature of zeros", forged(`{"alg":"ES256","kid":"0"}`, claims, func([]byte) []byte { return make([]byte, 64) }), wrong},
		{"with the public key as a secret, as PEM", forged(`{"alg":"HS256","kid":"0"}`, claims, hs256(public)), algorithm},
		{"with the public key as a secret, as DER", forged(`{"alg":"HS256","kid":"0"}`, claims, hs256(der)), algorithm},
		{"with a secret of the set", forged(`{"alg":"HS256","kid":"secret"}`, claims, hs256([]byte("the secret"))), algorithm},
		{"of another key", forged(`{"alg":"ES256","kid":"0"}`, claims, es256(t, other)), wrong},
		{"of another algorithm than the key's", forged(`{"alg":"RS256","kid":"0"}`, claims, es256(t, key)), wrong},
		{"of a key for another algorithm", forged(`{"alg":"ES256","kid":"384"}`, claims, es256(t, other)), unknown},
		{"of a key to encrypt with", forged(`{"alg":"ES256","kid":"encrypts"}`, claims, es256(t, other)), unknown},
		{"of an unknown key", forged(`{"alg":"ES256","kid":"1"}`, claims, es256(t, key)), unknown},
		{"of no key", forged(`{"alg":"ES256"}`, claims, es256(t, key)), unknown},
		{"of a key whose name is a path", forged(`{"alg":"ES256","kid":"../../dev/null"}`, claims, es256(t, key)), unknown},
		{"that brings its key", forged(`{"alg":"ES256","kid":"0","jwk":`+string(own)+`}`, claims, es256(t, other)), wrong},
		{"that says where its key is", forged(`{"alg":"ES256","kid":"mine","jku":"https://evil/keys"}`, claims, es256(t, other)), unknown},
		{"with a critical header that nobody knows", forged(`{"alg":"ES256","kid":"0","crit":["x"],"x":1}`, claims, es256(t, key)), ""},
		{"with claims of before", forged(`{"alg":"ES256","kid":"0"}`, claims, func([]byte) []byte {
			return es256(t, key)([]byte(base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"0"}`)) + ".e30"))
		}), wrong},
		{"with an issuer that stands twice", forged(`{"alg":"ES256","kid":"0"}`, strings.Replace(claims, "{", `{"iss":"https://any",`, 1), es256(t, key)), malformed},
		{"with claims that are no object", forged(`{"alg":"ES256","kid":"0"}`, `["https://id"]`, es256(t, key)), malformed},
		{"with claims that nest without end", forged(`{"alg":"ES256","kid":"0"}`, strings.Repeat(`{"a":`, 12_000), es256(t, key)), malformed},
		{"with a header that nests without end", forged(strings.Repeat(`[`, 12_000), claims, es256(t, key)), malformed},
		{"with a header of nothing", forged(``, claims, es256(t, key)), algorithm},
		{"that is encrypted", "a.b.c.d.e", malformed},
		{"as JSON", `{"payload":"e30","signatures":[]}`, malformed},
		{"of dots", "..", algorithm},
		{"garbage", "a.b.c", malformed},
		{"nothing", "", malformed},
	} {
		_, _, _, err := v.Verify(tt.token)
		if errs.Of(err) != errs.TokenInvalid || !strings.Contains(errs.From(err).Msg, tt.why) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.why)
		}
	}
}

// What was verified are the claims that are returned.
func FuzzVerify(f *testing.F) {
	key := ecKey(f)
	v, good := verifier(f, setOf(f, key.Public())), forged(`{"alg":"ES256","kid":"0"}`, claimsWith(f, nil), es256(f, key))
	f.Add(good)
	f.Add(forged(`{"alg":"none"}`, claimsWith(f, nil), unsigned))
	f.Add(`{"payload":"e30","signatures":[{"protected":"e30","signature":""}]}`)
	f.Add("..")
	_, want, _, err := v.Verify(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, token string) {
		_, claims, _, err := v.Verify(token)
		if err != nil && errs.Of(err) != errs.TokenInvalid {
			t.Error(err)
		}
		if err == nil {
			if diff := cmp.Diff(want, claims); diff != "" {
				t.Errorf("%q is accepted (-signed +accepted):\n%s", token, diff)
			}
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	key := ecKey(b)
	v, token := verifier(b, setOf(b, key.Public())), signed(b, jose.ES256, key, "0", claimsWith(b, nil))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, _, err := v.Verify(token); err != nil {
			b.Fatal(err)
		}
	}
}
