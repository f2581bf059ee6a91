// Package tokens verifies JSON web tokens with the keys of their issuers.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/sync/errgroup"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

// leeway is the tolerated clock difference to issuers.
const leeway = 30 * time.Second

// algorithms are the accepted signature algorithms. All are asymmetric: with a symmetric one, anyone who can
// read an issuer's keys could sign.
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// Verifier verifies the tokens of a policy's issuers. It is a tenants.Verifier: it is safe for concurrent use,
// and Verify does not wait for the network.
type Verifier struct {
	issuers map[string]*issuer
}

type issuer struct {
	of   *policy.Issuer
	keys *keys
}

// New returns a verifier without keys: see [Verifier.Load] and [Verifier.Run]. failed is called when an
// issuer's keys cannot be read, and not again until they could be read.
func New(issuers []policy.Issuer, failed func(issuer string, err error)) *Verifier {
	v, client := &Verifier{issuers: make(map[string]*issuer)}, newClient()
	for i := range issuers {
		of := &issuers[i]
		v.issuers[of.Name] = &issuer{of, newKeys(of.JWKS, client, func(err error) { failed(of.Name, err) })}
	}
	return v
}

// Load loads the keys of all issuers. An unreadable file is an error with the reason policy_invalid. An
// unreadable URL is not an error: Run retries it.
func (v *Verifier) Load(ctx context.Context) error {
	var group errgroup.Group
	for _, i := range v.issuers {
		group.Go(func() error {
			err := i.keys.refresh(ctx)
			if err != nil && !i.keys.remote {
				return errs.Wrap(errs.PolicyInvalid, err, "the keys of issuer %q cannot be read from %s: %v", i.of.Name, i.of.JWKS, err)
			}
			i.keys.report(err)
			return nil
		})
	}
	return group.Wait()
}

// Run keeps the keys up to date until ctx is done. It returns nil.
func (v *Verifier) Run(ctx context.Context) error {
	var group errgroup.Group
	for _, i := range v.issuers {
		group.Go(func() error { i.keys.run(ctx); return nil })
	}
	return group.Wait()
}

// claims are the claims that decide whether a token is accepted.
type claims struct {
	Issuer    string           `json:"iss"`
	Audience  jwt.Audience     `json:"aud"`
	Expiry    *jwt.NumericDate `json:"exp"`
	NotBefore *jwt.NumericDate `json:"nbf"`
}

// Verify implements tenants.Verifier.
func (v *Verifier) Verify(token string) (by *policy.Issuer, all map[string]any, expires time.Time, err error) {
	refuse := func(err error) (*policy.Issuer, map[string]any, time.Time, error) {
		return nil, nil, time.Time{}, refusal(err)
	}
	parsed, err := jwt.ParseSigned(token, algorithms())
	if err != nil {
		return refuse(err)
	}
	var said claims
	if err := parsed.UnsafeClaimsWithoutVerification(&said); err != nil {
		return refuse(err)
	}
	i := v.issuers[said.Issuer]
	if i == nil {
		return nil, nil, time.Time{}, errs.New(errs.TokenInvalid, "the token's issuer %.100q is none of the policy's", said.Issuer)
	}
	if err := i.keys.verify(parsed, &said, &all); err != nil {
		return refuse(err)
	}
	if said.Expiry == nil {
		return refuse(errNoExpiry)
	}
	expected := jwt.Expected{Issuer: i.of.Name}
	if i.of.Audience != "" {
		expected.AnyAudience = jwt.Audience{i.of.Audience}
	}
	judged := jwt.Claims{Issuer: said.Issuer, Audience: said.Audience, Expiry: said.Expiry, NotBefore: said.NotBefore}
	if err := judged.ValidateWithLeeway(expected, leeway); err != nil {
		return refuse(err)
	}
	return i.of, all, said.Expiry.Time(), nil
}

var (
	errNoExpiry   = errors.New("no claim exp")
	errUnknownKey = errors.New("unknown key")
)

// refusal says why a token is refused, without quoting it.
func refusal(err error) error {
	why := "it is malformed"
	var algorithm *jose.ErrUnexpectedSignatureAlgorithm
	for _, known := range []struct {
		is  bool
		why string
	}{
		{errors.Is(err, jwt.ErrExpired), "it has expired"},
		{errors.Is(err, jwt.ErrNotValidYet), "it is not valid yet"},
		{errors.Is(err, jwt.ErrInvalidAudience), "it is for another audience"},
		{errors.Is(err, jose.ErrCryptoFailure), "its signature is wrong"},
		{errors.As(err, &algorithm), "its signature is none of RS, PS, ES and EdDSA"},
		{errors.Is(err, errNoExpiry), "it has no expiry"},
		{errors.Is(err, errUnknownKey), "its issuer has no such key"},
	} {
		if known.is {
			why = known.why
			break
		}
	}
	return errs.Wrap(errs.TokenInvalid, fmt.Errorf("token: %w", err), "the token is refused: %s", why)
}

// newClient returns the client that downloads keys. It does not follow redirects from https to http, where keys
// could be replaced.
func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // the standard library's
	transport.DisableKeepAlives, transport.MaxResponseHeaderBytes = true, maxHeader
	return &http.Client{
		Transport: transport, Timeout: timeout,
		CheckRedirect: func(to *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects || to.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
				return fmt.Errorf("a redirect to %s is not followed", to.URL.Redacted())
			}
			return nil
		},
	}
}
