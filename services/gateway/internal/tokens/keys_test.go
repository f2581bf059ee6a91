package tokens

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// setOf writes a key set of keys called 0, 1 and so on.
func setOf(t testing.TB, keys ...any) []byte {
	t.Helper()
	var set jose.JSONWebKeySet
	for i, key := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key, KeyID: fmt.Sprint(i)})
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func ecKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issuerServer is an issuer's server behind connections in memory, so that time is the test's.
type issuerServer struct {
	connections chan net.Conn
	closed      chan struct{}

	mu     sync.Mutex
	answer http.HandlerFunc // guarded by mu
	calls  int              // guarded by mu
}

func (s *issuerServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.connections:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *issuerServer) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func (*issuerServer) Addr() net.Addr { return &net.UnixAddr{Name: "issuer"} }

func (s *issuerServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls++
	answer := s.answer
	s.mu.Unlock()
	answer(w, r)
}

// serves has the server answer with a text from now on.
func (s *issuerServer) serves(status int, text []byte) {
	s.handles(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write(text)
	})
}

func (s *issuerServer) handles(f http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// called returns how often the server was asked since the last time.
func (s *issuerServer) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.calls
	s.calls = 0
	return n
}

// rig is a verifier of one issuer, https://id, whose keys come from a server.
type rig struct {
	*Verifier
	t      *testing.T
	server *issuerServer

	mu     sync.Mutex
	failed []string // guarded by mu
}

// underTest runs a test in virtual time, with a verifier that runs.
func underTest(t *testing.T, answer http.HandlerFunc, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, server: &issuerServer{connections: make(chan net.Conn), closed: make(chan struct{}), answer: answer}}
		server := &http.Server{Handler: r.server, ReadHeaderTimeout: time.Minute}
		var group sync.WaitGroup
		group.Go(func() { _ = server.Serve(r.server) })
		r.Verifier = New([]policy.Issuer{{Name: "https://id", JWKS: "http://id/keys"}}, func(_ string, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.failed = append(r.failed, err.Error())
		})
		transport := r.issuers["https://id"].keys.client.Transport.(*http.Transport) //nolint:forcetypeassert // ours
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			client, served := net.Pipe()
			select {
			case r.server.connections <- served:
				return client, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := r.Load(ctx); err != nil {
			t.Error(err)
		}
		group.Go(func() { _ = r.Run(ctx) })
		synctest.Wait()
		test(r)
		cancel()
		_ = server.Close()
		group.Wait()
	})
}

func serving(text []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }
}

// accepts reports whether a token of a key is accepted.
func (r *rig) accepts(key crypto.PrivateKey, kid string) bool {
	r.t.Helper()
	began := time.Now()
	_, _, _, err := r.Verify(signed(r.t, jose.ES256, key, kid, `{"iss":"https://id","exp":99999999999}`))
	if err != nil && errs.Of(err) != errs.TokenInvalid {
		r.t.Fatal(err)
	}
	if waited := time.Since(began); waited > 0 { // of virtual time: it passes where all wait
		r.t.Errorf("a caller has waited %v", waited)
	}
	return err == nil
}

// failures returns what was reported since the last time.
func (r *rig) failures() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, r.failed = r.failed, nil
	return list
}

func (r *rig) passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestKeysOfAURLAreReadAgain(t *testing.T) {
	before, after := ecKey(t), ecKey(t)
	underTest(t, serving(setOf(t, before.Public())), func(r *rig) {
		if !r.accepts(before, "0") || r.server.called() != 1 {
			t.Error("the first keys are not there")
		}
		r.server.serves(http.StatusOK, setOf(t, after.Public()))
		if r.passes(14 * time.Minute); !r.accepts(before, "0") {
			t.Error("the keys are gone before they were to be read again")
		}
		if r.passes(2 * time.Minute); r.accepts(before, "0") || !r.accepts(after, "0") {
			t.Error("after a quarter of an hour the new keys are not there")
		}
	})
}

// A token of a key that the issuer has begun to use meanwhile has the keys be read, but a
// flood of invented ones has them be read once a minute.
func TestTokensOfUnknownKeysHaveKeysBeRead(t *testing.T) {
	first, second := ecKey(t), ecKey(t)
	underTest(t, serving(setOf(t, first.Public())), func(r *rig) {
		r.server.serves(http.StatusOK, setOf(t, first.Public(), second.Public()))
		r.server.called()
		if r.accepts(second, "1") {
			t.Error("a key is known before it was read")
		}
		if r.passes(0); !r.accepts(second, "1") || r.server.called() != 1 {
			t.Error("the new key was not read")
		}
		for i := range 60 { // a minute
			for range 5 {
				r.accepts(first, fmt.Sprint("invented ", i))
			}
			r.passes(time.Second)
		}
		if n := r.server.called(); n != 1 {
			t.Errorf("a minute of 300 tokens of unknown keys has the keys be read %d times", n)
		}
	})
}

// Whatever the server does: callers do not wait, memory is bounded, known keys stay, and it
// is reported once and tried again soon.
func TestIssuersServersThatMisbehave(t *testing.T) {
	key := ecKey(t)
	var most sync.Map
	endless := func(w io.Writer, r *http.Request) {
		var n int64
		for block := make([]byte, 64<<10); r.Context().Err() == nil && n < 1<<30; {
			written, err := w.Write(block)
			n += int64(written)
			if err != nil {
				break
			}
		}
		most.Store("bytes", n)
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 256 {
		_, _ = z.Write(make([]byte, 1<<20))
	}
	_ = z.Close()
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		why    string
	}{
		"errors":       {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "502"},
		"HTML":         {serving([]byte("<html>")), "no JSON web key set"},
		"no keys":      {serving([]byte(`{"error": "moved"}`)), "no list of keys"},
		"another list": {serving([]byte(`[]`)), "no JSON web key set"},
		"stalls":       {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "exceeded"},
		"stalls in it": {func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); <-r.Context().Done() }, "exceeded"}, //nolint:forcetypeassert // net/http's
		"a gigabyte":   {func(w http.ResponseWriter, r *http.Request) { endless(w, r) }, "more than 1048576 bytes"},
		"a gzip bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		}, "more than 1048576 bytes"},
		"long headers":  {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, "header"},
		"redirects":     {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/keys?again", http.StatusFound) }, "not followed"},
		"too many keys": {serving([]byte(`{"keys": [` + strings.Repeat(`{},`, maxKeys) + `{}]}`)), "257 keys"},
		"useless keys":  {serving([]byte(`{"keys": [{"kty": "none"}, {"kty": "oct", "k": "AAAA"}]}`)), "no key that can be used"},
		"deep nesting":  {serving([]byte(`{"keys": ` + strings.Repeat("[", 500_000) + strings.Repeat("]", 500_000) + `}`)), "depth"},
		"a cut response": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{`))
		}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			underTest(t, serving(setOf(t, key.Public())), func(r *rig) {
				r.server.handles(tt.answer)
				r.accepts(key, "unknown")
				for range 30 {
					if r.passes(time.Second); !r.accepts(key, "0") {
						t.Fatal("the keys that were known are gone")
					}
				}
				if failed := r.failures(); len(failed) != 1 || !strings.Contains(failed[0], tt.why) {
					t.Errorf("reported: %q, want %q once", failed, tt.why)
				}
				r.server.serves(http.StatusOK, setOf(t, key.Public()))
				r.passes(20 * time.Second)
				r.server.handles(tt.answer)
				r.passes(16 * time.Minute)
				if failed := r.failures(); len(failed) != 1 {
					t.Errorf("reported after it was well again: %q", failed)
				}
			})
		})
	}
	if n, ok := most.Load("bytes"); !ok || n.(int64) > 64<<20 { //nolint:forcetypeassert // ours
		t.Errorf("%v bytes were sent to somebody who reads a megabyte", n)
	}
}

// A URL that cannot be read at the start is no error, and tried again soon.
func TestURLsThatCannotBeReadAtTheStart(t *testing.T) {
	key := ecKey(t)
	underTest(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, func(r *rig) {
		if failed := r.failures(); len(failed) != 1 || !strings.Contains(failed[0], "503") {
			t.Errorf("reported: %q", failed)
		}
		if r.accepts(key, "0") {
			t.Error("a token is accepted without keys")
		}
		r.server.serves(http.StatusOK, setOf(t, key.Public()))
		if r.passes(11 * time.Second); !r.accepts(key, "0") {
			t.Error("the keys are not there after ten seconds")
		}
	})
}

// An issuer that publishes an empty set has withdrawn its keys.
func TestKeysThatAreWithdrawnVerifyNothing(t *testing.T) {
	key := ecKey(t)
	underTest(t, serving(setOf(t, key.Public())), func(r *rig) {
		r.server.serves(http.StatusOK, []byte(`{"keys": []}`))
		if r.passes(16 * time.Minute); r.accepts(key, "0") {
			t.Error("a withdrawn key verifies a token")
		}
	})
}

func TestKeysThatMayVerify(t *testing.T) {
	signs := ecKey(t)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	large := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 16_384, 1), E: 65537}
	write := func(keys ...jose.JSONWebKey) []byte {
		text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good := jose.JSONWebKey{Key: signs.Public(), KeyID: "good", Use: "sig"}
	for _, tt := range []struct {
		name string
		text []byte
		want []string
	}{
		{"one to sign with", write(good), []string{"good"}},
		{"one to encrypt with", write(good, jose.JSONWebKey{Key: ed.Public(), KeyID: "x", Use: "enc"}), []string{"good"}},
		{"the public half of a private one", write(jose.JSONWebKey{Key: ed, KeyID: "private"}), []string{"private"}},
		{"a symmetric one", write(good, jose.JSONWebKey{Key: []byte("secret"), KeyID: "x"}), []string{"good"}},
		{"one that takes seconds", write(good, jose.JSONWebKey{Key: large, KeyID: "x"}), []string{"good"}},
		{"one that is not on its curve", []byte(strings.Replace(string(write(good)), `"keys":[`, `"keys":[{"kty":"EC","crv":"P-256","x":"AAAA","y":"AAAA"},`, 1)), []string{"good"}},
		{"one of a kind that is not known", []byte(strings.Replace(string(write(good)), `"keys":[`, `"keys":[{"kty":"PQ"},`, 1)), []string{"good"}},
		{"two of one name", write(good, jose.JSONWebKey{Key: ed.Public(), KeyID: "good"}), []string{"good", "good"}},
		{"none", []byte(`{"keys": []}`), nil},
	} {
		set, err := parse(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		var got []string
		for id, keys := range set {
			for _, key := range keys {
				if got = append(got, id); !key.IsPublic() {
					t.Errorf("%s: the private key is retained", tt.name)
				}
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// A file is read again when it changes; while it cannot be its keys stay.
func TestKeysOfAFileAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks.json")
	write := func(text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Error(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t}
		failed := 0
		r.Verifier = New([]policy.Issuer{{Name: "https://id", JWKS: file}}, func(string, error) { failed++ })
		if err := r.Load(t.Context()); errs.Of(err) != errs.PolicyInvalid || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), file) {
			t.Errorf("a file that is not there: %v", err)
		}
		before, after := ecKey(t), ecKey(t)
		write(setOf(t, before.Public()))
		if err := r.Load(t.Context()); err != nil || !r.accepts(before, "0") {
			t.Errorf("a file that is there: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _ = r.Run(ctx) })
		for _, broken := range [][]byte{nil, []byte("{"), make([]byte, maxBytes+1)} {
			write(broken)
			if r.passes(2 * time.Second); !r.accepts(before, "0") {
				t.Error("a broken file has taken the keys away")
			}
		}
		write(setOf(t, after.Public()))
		if r.passes(2 * time.Second); r.accepts(before, "0") || !r.accepts(after, "0") || failed != 1 {
			t.Errorf("the new keys are not there; %d failures", failed)
		}
		cancel()
		group.Wait()
	})
}

// Keys that come over TLS are not exchanged on the way of a redirect.
func TestRedirectsThatLeaveTLSAreNotFollowed(t *testing.T) {
	set := setOf(t, ecKey(t).Public())
	plain := httptest.NewServer(serving(set))
	defer plain.Close()
	target := plain.URL
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			_, _ = w.Write(set)
			return
		}
		http.Redirect(w, r, target, http.StatusFound)
	}))
	defer secure.Close()
	client := newClient()
	client.Transport.(*http.Transport).TLSClientConfig = secure.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // both are
	k := newKeys(secure.URL, client, func(error) {})
	if err := k.refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "not followed") {
		t.Errorf("from https to http: %v", err)
	}
	target = secure.URL + "/keys"
	if err := k.refresh(t.Context()); err != nil {
		t.Errorf("from https to https: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(setOf(f, ecKey(f).Public()))
	f.Add([]byte(`{"keys": [{"kty": "RSA", "n": "AQ", "e": "AQAB", "kid": "x"}, {"kty": "OKP", "crv": "Ed25519", "x": "AA"}]}`))
	f.Add([]byte(`{"keys": [{"kty": "oct", "k": "AAAA"}], "keys": null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		set, err := parse(text)
		if err != nil {
			return
		}
		for _, keys := range set {
			for i := range keys {
				if !keys[i].IsPublic() || !verifies(&keys[i]) {
					t.Errorf("a key that may not verify: %+v", keys[i])
				}
			}
		}
	})
}
