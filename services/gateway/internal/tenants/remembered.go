package tenants

import (
	"container/list"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/policy"
)

// maxRemembered is how many verified tokens are remembered.
const maxRemembered = 10_000

// remembered are the tenants of tokens that were verified, until these expire, by
// their hashes: verifying a signature takes a hundred times as long as a hash.
type remembered struct {
	most int

	mu     sync.Mutex
	tokens map[[sha256.Size]byte]*list.Element // of rememberedToken; guarded by mu
	recent list.List                           // the one used last first; guarded by mu
}

type rememberedToken struct {
	hash    [sha256.Size]byte
	tenant  *policy.Tenant
	expires time.Time
}

func newRemembered(most int) *remembered {
	return &remembered{most: most, tokens: make(map[[sha256.Size]byte]*list.Element)}
}

func (r *remembered) get(token string, now time.Time) *policy.Tenant {
	hash := sha256.Sum256([]byte(token))
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tokens[hash]
	if e == nil {
		return nil
	}
	known := e.Value.(rememberedToken) //nolint:errcheck,forcetypeassert // of tokens alone
	if !now.Before(known.expires) {
		r.recent.Remove(e)
		delete(r.tokens, hash)
		return nil
	}
	r.recent.MoveToFront(e)
	return known.tenant
}

func (r *remembered) put(token string, t *policy.Tenant, expires time.Time) {
	hash := sha256.Sum256([]byte(token))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tokens[hash] != nil {
		return
	}
	r.tokens[hash] = r.recent.PushFront(rememberedToken{hash, t, expires})
	for r.recent.Len() > r.most {
		last := r.recent.Remove(r.recent.Back()).(rememberedToken) //nolint:errcheck,forcetypeassert // of tokens alone
		delete(r.tokens, last.hash)
	}
}
