package tenants

import (
	"crypto/sha256"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/nereid-serving/nereid/libs/policy"
)

// maxRemembered is how many verified tokens are cached, and rememberedFor for how long at most: a key that its
// issuer withdraws is not accepted for longer than that.
const (
	maxRemembered = 10_000
	rememberedFor = 5 * time.Minute
)

// remembered caches the tenants of verified tokens until the tokens expire, keyed by hash: verifying a
// signature takes a hundred times as long as hashing.
type remembered struct {
	tokens *otter.Cache[[sha256.Size]byte, rememberedToken]
}

type rememberedToken struct {
	tenant  *policy.Tenant
	expires time.Time
}

func newRemembered() remembered {
	return remembered{otter.Must(&otter.Options[[sha256.Size]byte, rememberedToken]{MaximumSize: maxRemembered})}
}

func (r remembered) get(token string, now time.Time) *policy.Tenant {
	known, ok := r.tokens.GetIfPresent(sha256.Sum256([]byte(token)))
	if !ok || !now.Before(known.expires) {
		return nil
	}
	return known.tenant
}

func (r remembered) put(token string, t *policy.Tenant, expires, now time.Time) {
	if longest := now.Add(rememberedFor); expires.After(longest) {
		expires = longest
	}
	r.tokens.Set(sha256.Sum256([]byte(token)), rememberedToken{t, expires})
}
