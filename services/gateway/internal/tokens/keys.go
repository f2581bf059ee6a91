package tokens

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// urlRefresh is the interval at which a URL's keys are reloaded, unknownKey the minimum interval of reloads
	// because of tokens with unknown keys, and retry the delay after a failure.
	urlRefresh = 15 * time.Minute
	unknownKey = time.Minute
	retry      = 10 * time.Second
	// fileRefresh is the interval at which a file is reloaded.
	fileRefresh = time.Second
	// timeout bounds one download of a URL.
	timeout      = 5 * time.Second
	maxRedirects = 3
	// maxHeader, maxBytes and maxKeys bound an issuer's answer, and maxRSA the bits of a key, since
	// verification time grows with them.
	maxHeader = 64 << 10
	maxBytes  = 1 << 20
	maxKeys   = 256
	maxRSA    = 8192
)

// keys are one issuer's keys as last loaded.
type keys struct {
	from   string // a URL or a file
	remote bool   // it is a URL
	client *http.Client
	failed func(error)
	// asked receives a signal when a token with an unknown key arrives.
	asked chan struct{}
	byID  atomic.Pointer[map[string][]jose.JSONWebKey]

	failing bool // owned by Load, and then by Run
}

func newKeys(from string, client *http.Client, failed func(error)) *keys {
	remote := strings.HasPrefix(from, "https://") || strings.HasPrefix(from, "http://")
	return &keys{from: from, remote: remote, client: client, failed: failed, asked: make(chan struct{}, 1)}
}

// run keeps the keys up to date until ctx is done.
func (k *keys) run(ctx context.Context) {
	every := fileRefresh
	if k.remote {
		every = urlRefresh
	}
	first := every
	if k.failing {
		first = min(every, retry)
	}
	timer := time.NewTimer(first)
	defer timer.Stop()
	rest := time.NewTimer(0) // when tokens with unknown keys may cause a reload again
	defer rest.Stop()
	var asked <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
			asked = k.asked
			continue
		case <-asked:
		case <-timer.C:
		}
		asked = nil
		next := every
		err := k.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		if k.report(err); err != nil {
			next = min(every, retry)
		}
		timer.Reset(next)
		rest.Reset(unknownKey)
	}
}

// refresh reloads the keys. If it fails, the known keys stay.
func (k *keys) refresh(ctx context.Context) error {
	text, err := k.read(ctx)
	if err != nil {
		return err
	}
	set, err := parse(text)
	if err != nil {
		return err
	}
	k.byID.Store(&set)
	return nil
}

// report reports the first of several consecutive failures.
func (k *keys) report(err error) {
	if err != nil && !k.failing {
		k.failed(err)
	}
	k.failing = err != nil
}

// read reads the text of the keys, at most maxBytes.
func (k *keys) read(ctx context.Context) ([]byte, error) {
	if !k.remote {
		f, err := os.Open(k.from)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		return readAll(f)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.from, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := k.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answers %s", response.Status)
	}
	return readAll(response.Body)
}

func readAll(from io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		return nil, fmt.Errorf("the key set has more than %d bytes", maxBytes)
	}
	return text, err
}

// parse parses a key set (RFC 7517) into keys by their ids. As the RFC requires, it ignores keys that cannot be
// used. A set without keys is valid: its issuer has withdrawn all of them.
func parse(text []byte) (map[string][]jose.JSONWebKey, error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("it is no JSON web key set: %w", err)
	}
	switch {
	case set.Keys == nil:
		return nil, errors.New("it is no JSON web key set: it has no list of keys")
	case len(*set.Keys) > maxKeys:
		return nil, fmt.Errorf("the key set has %d keys, and may have %d", len(*set.Keys), maxKeys)
	}
	byID := make(map[string][]jose.JSONWebKey)
	var unusable error
	for _, raw := range *set.Keys {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(raw); err != nil {
			unusable = err
			continue
		}
		if key = key.Public(); !verifies(&key) { // a symmetric key has no public key
			unusable = errors.New("a key is not one that verifies signatures")
			continue
		}
		byID[key.KeyID] = append(byID[key.KeyID], key)
	}
	if len(byID) == 0 && unusable != nil {
		return nil, fmt.Errorf("the key set has no key that can be used: %w", unusable)
	}
	return byID, nil
}

// verifies reports whether a key can be used to verify signatures.
func verifies(key *jose.JSONWebKey) bool {
	if r, ok := key.Key.(*rsa.PublicKey); ok && r.N.BitLen() > maxRSA {
		return false
	}
	return key.Valid() && key.Use != "enc"
}

// verify verifies a token with the key that it names, and reads its claims. A token with an unknown key is
// refused and causes a reload of the keys soon.
func (k *keys) verify(token *jwt.JSONWebToken, claims ...any) error {
	header := &token.Headers[0]
	err := errUnknownKey
	if byID := k.byID.Load(); byID != nil {
		for i := range (*byID)[header.KeyID] {
			key := &(*byID)[header.KeyID][i]
			if key.Algorithm != "" && key.Algorithm != header.Algorithm {
				continue
			}
			if err = token.Claims(key.Key, claims...); err == nil {
				return nil
			}
		}
	}
	if errors.Is(err, errUnknownKey) {
		select {
		case k.asked <- struct{}{}:
		default:
		}
	}
	return err
}
