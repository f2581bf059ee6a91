package cache

import (
	"context"
	"encoding/hex"
)

// Values has values by their names in another process. It is safe for concurrent use.
type Values interface {
	// Get returns a value of at most so many bytes, or nil: there is none, it is larger
	// or it cannot be asked for. It takes a bounded time and ends soon after ctx.
	Get(ctx context.Context, name string, most int) []byte
	// Set keeps a value, unless that would wait or cannot be. It takes it over and does
	// not block.
	Set(name string, value func() []byte)
}

// maxValue is the largest value in another process, in bytes: a process that asks
// for it has it in memory whole.
const maxValue = 16 << 20

// remote keeps responses in another process.
type remote struct{ values Values }

// NewRemote makes a store of responses in another process, which other gateways may
// have too.
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

// nameOf has the version of the form of values, so that programs of different forms
// do not read each other's.
func nameOf(k Key) string { return "nereid:response:1:" + hex.EncodeToString(k[:]) }
