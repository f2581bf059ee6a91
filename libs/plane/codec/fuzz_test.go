package codec

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// FuzzReader gives envelopes to the reader, of which it must say what the
// generated types say, but for what no peer says.
func FuzzReader(f *testing.F) {
	all := kinds()
	for i, k := range all {
		for seed := range 3 {
			value := rapid.Custom(k.draw).Example(seed)
			data, err := proto.Marshal(k.message(value))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), data, uint64(seed))
		}
	}
	pool := tensor.NewPool(1 << 20)
	f.Fuzz(func(t *testing.T, which uint8, data []byte, cuts uint64) {
		k := all[int(which)%len(all)]
		want := k.envelope()
		oracle := proto.Unmarshal(data, want)
		got, err := k.one(NewReader(pool), split(data, cuts))
		var known *errs.Error
		switch {
		case err == nil && oracle != nil:
			t.Fatalf("taken, but protobuf says %v", oracle)
		case err == nil:
			if diff := cmp.Diff(k.value(want), got, sight()...); diff != "" {
				t.Fatalf("-generated +ours\n%s", diff)
			}
			release(got)
		case errors.As(err, &known) && known.Err != nil && oracle == nil:
			t.Fatalf("refused, %v, but protobuf takes it", err)
		}
		if s := pool.Stats(); s.InUse != 0 {
			t.Fatalf("%d bytes of mapped memory are in use at the end", s.InUse)
		}
	})
}

// FuzzEnvelope takes envelopes apart.
func FuzzEnvelope(f *testing.F) {
	f.Add([]byte{0x0a, 2, 0x12, 0}, uint64(0))
	f.Add([]byte{0x0a, 2, 0x12, 0, 0x0a, 0x82, 0, 0x1a, 0, 0x12, 1, 7}, uint64(1))
	f.Fuzz(func(t *testing.T, data []byte, cuts uint64) {
		r := NewReader(tensor.NewPool(0))
		bytes := 0
		err := r.Each(split(data, cuts), func(member protowire.Number, b Body) error {
			if member < 1 {
				t.Errorf("member %d", member)
			}
			bytes += b.cursor.Left()
			return nil
		})
		if bytes > len(data) {
			t.Errorf("%d bytes of messages in %d", bytes, len(data))
		}
		if err != nil && errs.Of(err) != errs.PeerMalformed {
			t.Errorf("refused with %v", err)
		}
	})
}
