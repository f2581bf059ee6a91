package export

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// A peer may write to its memory whenever it likes, also while the stream's reader copies an
// output from there. A copy that is taken for the output is whole, and nothing that the peer
// writes later is in it.
func TestAPeerThatRewritesWhatIsCopied(t *testing.T) {
	const size = 256 << 10
	arena, err := shm.New(8 << 20)
	if err != nil {
		t.Skip(err)
	}
	theirs := tensor.NewPoolOf(arena, 8<<20)
	announced := arena.Announcement()
	region, err := shm.Open(announced)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Release()
	ours := tensor.NewPool(0)
	var named atomic.Pointer[tensor.Ref]
	var peer sync.WaitGroup
	var stop atomic.Bool
	first := make(chan struct{})
	peer.Go(func() {
		var before *tensor.Buffer // which is there until the next one is
		for value := byte(1); !stop.Load(); value++ {
			b, err := theirs.Get(size)
			if err != nil {
				t.Error(err)
				return
			}
			fill(b.Bytes(), value)
			name, ok := arena.Name(tensor.InBuffer(b, 0, size))
			if !ok {
				t.Error("the arena does not know its own memory")
			}
			if named.Swap(&name) == nil {
				close(first)
			}
			if before != nil {
				before.Release()
			}
			before = b
		}
		before.Release()
	})
	<-first
	whole, refused := 0, 0
	var kept tensor.Ref
	for i := 0; (whole < 100 || refused < 100) && i < 5000; i++ {
		name := *named.Load()
		got, err := copied(region, name, ours)
		switch {
		case errors.Is(err, shm.ErrReused):
			refused++
			continue
		case err != nil:
			t.Fatal(err)
		}
		whole++
		data, _ := got.Bytes()
		if n := bytes.Count(data, data[:1]); n != size {
			t.Fatalf("%d of %d bytes are of one tensor", n, size)
		}
		kept.Release()
		kept = got
	}
	before, _ := kept.Bytes()
	before = bytes.Clone(before)
	stop.Store(true)
	peer.Wait()
	if after, _ := kept.Bytes(); whole == 0 || !bytes.Equal(before, after) {
		t.Errorf("%d copies were whole and %d refused", whole, refused)
	}
	kept.Release()
	if n := ours.Stats().InUse; n != 0 {
		t.Errorf("%d bytes are in use", n)
	}
	if err := arena.Close(); err != nil {
		t.Error(err)
	}
}

func fill(b []byte, value byte) {
	for i := range b {
		b[i] = value
	}
}
