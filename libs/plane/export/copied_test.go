package export

import (
	"errors"
	"testing"

	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// reused is memory whose slot is given back while it is copied, or before, or not.
type reused struct {
	data          []byte
	before, while bool
	released      int
}

func (r *reused) Local(named tensor.Ref) (tensor.Ref, error) {
	if r.before {
		return tensor.Ref{}, shm.ErrReused
	}
	return tensor.InBuffer(tensor.Wrap(r.data, true, func(*tensor.Buffer) { r.released++ }), 0, named.Length), nil
}

func (r *reused) Current(tensor.Ref) bool { return !r.before && !r.while }

// What was copied counts only if the slot was not given back meanwhile: else some of it may be
// another tensor's.
func TestSlotsThatAreReusedWhileTheyAreCopied(t *testing.T) {
	for name, region := range map[string]*reused{"not at all": {}, "before": {before: true}, "meanwhile": {while: true}} {
		region.data = []byte("12345678")
		pool := tensor.NewPool(0)
		got, err := copied(region, tensor.Ref{Place: tensor.Arena, Length: 8}, pool)
		if lost := region.before || region.while; lost != errors.Is(err, shm.ErrReused) || !lost && err != nil {
			t.Errorf("given back %s: %v", name, err)
		}
		if err == nil {
			if data, _ := got.Bytes(); string(data) != "12345678" {
				t.Errorf("given back %s: %q", name, data)
			}
			got.Release()
		}
		if n := pool.Stats().InUse; n != 0 || region.released != map[bool]int{true: 0, false: 1}[region.before] {
			t.Errorf("given back %s: %d bytes are in use, and the slot was released %d times", name, n, region.released)
		}
	}
}
