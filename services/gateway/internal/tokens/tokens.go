// Package tokens verifies JSON web tokens by the keys of their issuers.
package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/time/rate"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/policy"
)

const (
	// refresh is how often the keys of a URL are read again, and unknownKey how often at
	// most for tokens of a key that is not known.
	refresh    = 15 * time.Minute
	unknownKey = time.Minute
	timeout    = 5 * time.Second
	// leeway is how far the clocks of issuers may be off.
	leeway = 30 * time.Second
)

// Verifier verifies the tokens of a policy's issuers. It is a tenants.Verifier.
type Verifier struct {
	issuers map[string]*issuer
}

type issuer struct {
	of     *policy.Issuer
	keys   jwt.Keyfunc
	parser *jwt.Parser
}

// New returns a verifier for a policy, which keeps the keys of URLs fresh until ctx is
// done. Failed is called with each failure to do so. A file that cannot be read is an
// error of the reason policy_invalid; a URL that cannot is tried again.
func New(ctx context.Context, issuers []policy.Issuer, failed func(issuer string, err error)) (*Verifier, error) {
	v := &Verifier{issuers: make(map[string]*issuer)}
	for i := range issuers {
		of := &issuers[i]
		keys, err := keysOf(ctx, of, failed)
		if err != nil {
			return nil, errs.Wrap(errs.PolicyInvalid, err, "the keys of issuer %q cannot be read from %s: %v", of.Name, of.JWKS, err)
		}
		options := []jwt.ParserOption{
			jwt.WithValidMethods([]string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}),
			jwt.WithIssuer(of.Name), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway),
		}
		if of.Audience != "" {
			options = append(options, jwt.WithAudience(of.Audience))
		}
		v.issuers[of.Name] = &issuer{of: of, keys: keys, parser: jwt.NewParser(options...)}
	}
	return v, nil
}

func keysOf(ctx context.Context, of *policy.Issuer, failed func(string, error)) (jwt.Keyfunc, error) {
	if !strings.HasPrefix(of.JWKS, "https://") && !strings.HasPrefix(of.JWKS, "http://") {
		text, err := os.ReadFile(of.JWKS)
		if err != nil {
			return nil, err
		}
		k, err := keyfunc.NewJWKSetJSON(json.RawMessage(text))
		if err != nil {
			return nil, err
		}
		return k.Keyfunc, nil
	}
	goOn := true
	k, err := keyfunc.NewDefaultOverrideCtx(ctx, []string{of.JWKS}, keyfunc.Override{
		Client: &http.Client{Timeout: timeout}, HTTPTimeout: timeout, NoErrorReturnFirstHTTPReq: &goOn,
		RefreshInterval: refresh, RefreshUnknownKID: rate.NewLimiter(rate.Every(unknownKey), 1), RateLimitWaitMax: time.Nanosecond,
		RefreshErrorHandlerFunc: func(string) func(context.Context, error) {
			return func(_ context.Context, err error) { failed(of.Name, err) }
		},
	})
	if err != nil {
		return nil, err
	}
	return k.Keyfunc, nil
}

// Verify implements tenants.Verifier.
func (v *Verifier) Verify(token string) (by *policy.Issuer, claims map[string]any, expires time.Time, err error) {
	var said jwt.MapClaims
	if _, _, err := jwt.NewParser().ParseUnverified(token, &said); err != nil {
		return nil, nil, time.Time{}, refusal(err)
	}
	name, _ := said.GetIssuer()
	i := v.issuers[name]
	if i == nil {
		return nil, nil, time.Time{}, errs.New(errs.TokenInvalid, "the token's issuer %q is none of the policy's", name)
	}
	said = nil
	if _, err := i.parser.ParseWithClaims(token, &said, i.keys); err != nil {
		return nil, nil, time.Time{}, refusal(err)
	}
	until, err := said.GetExpirationTime()
	if err != nil {
		return nil, nil, time.Time{}, refusal(err)
	}
	return i.of, said, until.Time, nil
}

// refusal says why a token is refused, without a word of it.
func refusal(err error) error {
	why := "it cannot be verified"
	for _, known := range []struct {
		err error
		why string
	}{
		{jwt.ErrTokenExpired, "it has expired"},
		{jwt.ErrTokenNotValidYet, "it is not valid yet"},
		{jwt.ErrTokenInvalidAudience, "it is for another audience"},
		{jwt.ErrTokenSignatureInvalid, "its signature is wrong"},
		{jwt.ErrTokenMalformed, "it is malformed"},
		{jwt.ErrTokenRequiredClaimMissing, "it has no expiry"},
		{keyfunc.ErrKeyfunc, "its issuer has no such key"},
		{jwt.ErrTokenUnverifiable, "no key verifies it"},
	} {
		if errors.Is(err, known.err) {
			why = known.why
			break
		}
	}
	return errs.Wrap(errs.TokenInvalid, fmt.Errorf("token: %w", err), "the token is refused: %s", why)
}
