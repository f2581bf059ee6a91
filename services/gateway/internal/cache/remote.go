package cache

import (
	"context"
	"encoding/hex"
)

// Values stores values by name in another process. It is safe for concurrent use.
type Values interface {
	// Get returns a value of at most most bytes. It returns nil if there is none, it is larger, or the other
	// process cannot be asked. It takes a bounded time and ends soon after ctx.
	Get(ctx context.Context, name string, most int) []byte
	// Set stores a value, unless that is impossible or would have to wait. It takes the value over and does not
	// block.
	Set(name string, value func() []byte)
}

// maxValue is the maximum size of a value in another process, in bytes: whoever reads it has all of it in
// memory.
const maxValue = 16 << 20

// remote stores responses in another process.
type remote struct{ values Values }

// NewRemote returns a store of responses in another process, which other gateways may use too.
func NewRemote(v Values) Store { return remote{v} }

func (s remote) get(ctx context.Context, k Key) *entry {
	value := s.values.Get(ctx, nameOf(k), maxValue)
	if value == nil {
		return nil
	}
	return decode(value)
}

func (s remote) set(k Key, made func() *entry) {
	s.values.Set(nameOf(k), func() []byte {
		if e := made(); e != nil {
			return encode(e)
		}
		return nil
	})
}

func (remote) limit() int64 { return maxValue }

func (remote) waits() bool { return true }

// nameOf includes the version of the encoding, so that programs with different encodings do not read each
// other's values.
func nameOf(k Key) string { return "nereid:response:1:" + hex.EncodeToString(k[:]) }
