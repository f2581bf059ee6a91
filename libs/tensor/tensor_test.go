package tensor_test

import (
	"errors"
	"math"
	"testing"

	"github.com/nereid-serving/nereid/libs/invariant"
	"github.com/nereid-serving/nereid/libs/tensor"
)

func TestDatatypesRoundTrip(t *testing.T) {
	sizes := map[tensor.Datatype]int{tensor.Bool: 1, tensor.FP16: 2, tensor.BF16: 2, tensor.FP32: 4, tensor.Int64: 8, tensor.Bytes: 0}
	for _, d := range tensor.Datatypes() {
		got, ok := tensor.ParseDatatype(d.String())
		if !ok || got != d || !d.Valid() {
			t.Errorf("%v parses back as %v, %t", d, got, ok)
		}
		if want, ok := sizes[d]; ok && d.Size() != want {
			t.Errorf("%v.Size() = %d, want %d", d, d.Size(), want)
		}
	}
	if n := len(tensor.Datatypes()); n != 14 {
		t.Errorf("%d datatypes, want 14", n)
	}
	for _, bad := range []string{"", "INVALID", "fp32", "TYPE_FP32", "STRING"} {
		if _, ok := tensor.ParseDatatype(bad); ok {
			t.Errorf("ParseDatatype(%q) accepted", bad)
		}
	}
	if past := tensor.BF16 + 1; tensor.Invalid.Valid() || past.Valid() || past.String() != "INVALID" {
		t.Error("what is no datatype is valid")
	}
	if tensor.Bytes.ConfigName() != "TYPE_STRING" || tensor.FP32.ConfigName() != "TYPE_FP32" {
		t.Error("configuration names differ")
	}
}

func TestShapeSizes(t *testing.T) {
	tests := []struct {
		shape  tensor.Shape
		n      int64
		ok     bool
		fp64   int64
		fp64ok bool
	}{
		{nil, 1, true, 8, true},
		{tensor.Shape{2, 3}, 6, true, 48, true},
		{tensor.Shape{2, 0, 3}, 0, true, 0, true},
		{tensor.Shape{2, 0, math.MaxInt64}, 0, false, 0, false},
		{tensor.Shape{-1, 3}, 0, false, 0, false},
		{tensor.Shape{math.MaxInt64}, math.MaxInt64, true, 0, false},
		{tensor.Shape{math.MaxInt64 / 8}, math.MaxInt64 / 8, true, math.MaxInt64 / 8 * 8, true},
		{tensor.Shape{math.MaxInt64/8 + 1}, math.MaxInt64/8 + 1, true, 0, false},
		{tensor.Shape{1 << 32, 1 << 32}, 0, false, 0, false},
		{tensor.Shape{1 << 31, 1 << 32}, 0, false, 0, false},
	}
	for _, tt := range tests {
		if n, ok := tt.shape.Elements(); n != tt.n || ok != tt.ok {
			t.Errorf("%v.Elements() = %d, %t, want %d, %t", tt.shape, n, ok, tt.n, tt.ok)
		}
		if n, ok := tt.shape.ByteSize(tensor.FP64); n != tt.fp64 || ok != tt.fp64ok {
			t.Errorf("%v.ByteSize(FP64) = %d, %t, want %d, %t", tt.shape, n, ok, tt.fp64, tt.fp64ok)
		}
	}
	if _, ok := (tensor.Shape{3}).ByteSize(tensor.Bytes); ok {
		t.Error("BYTES has a byte size by shape")
	}
}

func TestShapePatterns(t *testing.T) {
	tests := []struct {
		pattern, shape tensor.Shape
		want           bool
	}{
		{tensor.Shape{-1, 16}, tensor.Shape{5, 16}, true},
		{tensor.Shape{-1, 16}, tensor.Shape{5, 17}, false},
		{tensor.Shape{-1, 16}, tensor.Shape{16}, false},
		{tensor.Shape{-1}, tensor.Shape{-1}, false},
		{tensor.Shape{-1}, tensor.Shape{0}, true},
		{tensor.Shape{0}, tensor.Shape{0}, true},
		{tensor.Shape{}, tensor.Shape{}, true},
	}
	for _, tt := range tests {
		if got := tt.pattern.Admits(tt.shape); got != tt.want {
			t.Errorf("%v.Admits(%v) = %t, want %t", tt.pattern, tt.shape, got, tt.want)
		}
	}
	if got := (tensor.Shape{16}).Prepend(-1).String(); got != "[-1,16]" {
		t.Errorf("shape prints as %s", got)
	}
}

func TestPoolReusesAndCounts(t *testing.T) {
	pool := tensor.NewPool(1 << 20)
	for _, n := range []int{0, 1, 64, 65, 16383, 16384, 16385, 20000, 65536, 65537, 1 << 20, 3<<20 + 1} {
		b, err := pool.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		if b.Len() != n || len(b.Bytes()) != n {
			t.Errorf("Get(%d) has %d bytes", n, b.Len())
		}
		if want := n >= tensor.MappedThreshold; b.Mapped() != want {
			t.Errorf("Get(%d).Mapped() = %t, want %t", n, b.Mapped(), want)
		}
		for i := range b.Bytes() {
			b.Bytes()[i] = 0xff // the whole buffer is writable
		}
		b.Release()
	}
	if s := pool.Stats(); s.InUse != 0 || s.Free <= 0 || s.Free > 1<<20 {
		t.Errorf("after releasing all: %+v, want nothing in use and at most 1 MiB kept", s)
	}
	pool.Trim()
	if s := pool.Stats(); s.Free != 0 {
		t.Errorf("after Trim %d bytes are kept", s.Free)
	}
}

func TestPoolGivesBackWhatIsNotUsed(t *testing.T) {
	pool := tensor.NewPool(64 << 20)
	use := func(sizes ...int) {
		var held []*tensor.Buffer
		for _, n := range sizes {
			b, err := pool.Get(n)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, b)
		}
		for _, b := range held {
			b.Release()
		}
	}
	want := func(when string, free int64) {
		t.Helper()
		if s := pool.Stats(); s.Free != free {
			t.Errorf("%s %d bytes are free, want %d", when, s.Free, free)
		}
	}
	use(4<<20, 4<<20, 1<<20, 64<<10)
	all := int64(9<<20 + 64<<10)
	pool.TrimUnused()
	want("just after their use", all)
	use(4 << 20)
	pool.TrimUnused() // 5 MiB and more were free throughout
	want("after the use of less", 4<<20)
	use(4 << 20)
	pool.TrimUnused()
	want("after the same use again", 4<<20)
	pool.TrimUnused()
	want("after no use", 0)
}

func TestPoolGetDoesNotAllocateInSteadyState(t *testing.T) {
	if invariant.Enabled {
		t.Skip("allocations differ when assertions are compiled in")
	}
	pool := tensor.NewPool(1 << 20)
	if n := testing.AllocsPerRun(1000, func() {
		b, _ := pool.Get(512)
		b.Release()
	}); n > 0.1 {
		t.Errorf("%.2f allocations for a small buffer, want 0", n)
	}
}

func TestRefCounting(t *testing.T) {
	freed := 0
	b := tensor.Wrap([]byte("abcdef"), false, func(*tensor.Buffer) { freed++ })
	r := tensor.InBuffer(b, 2, 3)
	other := r.Retain()
	r.Release()
	if freed != 0 {
		t.Fatal("freed while a reference is held")
	}
	if data, err := other.Bytes(); err != nil || string(data) != "cde" || cap(data) != 3 {
		t.Errorf("Bytes = %q (cap %d), %v, want cde (cap 3)", data, cap(data), err)
	}
	other.Release()
	other.Release() // empty by now
	if freed != 1 {
		t.Errorf("freed %d times, want once", freed)
	}
	if _, err := (tensor.Ref{Place: tensor.Remote}).Bytes(); err == nil {
		t.Error("a remote reference gives bytes")
	}
}

func TestBytesElements(t *testing.T) {
	data := tensor.AppendBytes(tensor.AppendBytes(nil, "ab"), []byte{})
	if n, err := tensor.CountBytes(data, 2); n != 2 || err != nil {
		t.Fatalf("CountBytes = %d, %v, want 2", n, err)
	}
	// Nothing behind the first element too many is read.
	if n, err := tensor.CountBytes(append(tensor.AppendBytes(data, "c"), 0xff), 2); n != 3 || err != nil {
		t.Fatalf("CountBytes = %d, %v, want 3", n, err)
	}
	if n, err := tensor.CountBytes(data, math.MaxInt64); n != 2 || err != nil {
		t.Fatalf("CountBytes = %d, %v, want 2", n, err)
	}
	for cut, want := range map[int]error{1: tensor.ErrIncompleteLength, 3: tensor.ErrIncompleteLength, 5: tensor.ErrIncompleteString} {
		if _, err := tensor.CountBytes(data[:cut], 2); !errors.Is(err, want) {
			t.Errorf("first %d bytes: %v, want %v", cut, err, want)
		}
	}
	if _, _, err := tensor.CutBytes([]byte{0xff, 0xff, 0xff, 0xff, 1}); !errors.Is(err, tensor.ErrIncompleteString) {
		t.Errorf("huge length: %v", err)
	}
	var short *tensor.IncompleteError
	if _, err := tensor.CountBytes(data[:5], 2); !errors.As(err, &short) || short.Want != 2 || short.Have != 1 || err.Error() != "incomplete string data: want 2 bytes, have 1" {
		t.Errorf("one byte of two: %v", err)
	}
}

func FuzzCountBytes(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 'a', 'b'})
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := tensor.CountBytes(data, int64(len(data)))
		if err != nil {
			return
		}
		var again []byte
		rest := data
		for range n {
			var e []byte
			if e, rest, err = tensor.CutBytes(rest); err != nil {
				t.Fatalf("CutBytes fails where CountBytes did not: %v", err)
			}
			again = tensor.AppendBytes(again, e)
		}
		if string(again) != string(data) {
			t.Fatalf("walk rebuilt %q from %q", again, data)
		}
	})
}

// What no machine has room for is refused, whoever asks for it.
func TestSizesBeyondAnyAddressSpace(t *testing.T) {
	p := tensor.NewPool(0)
	for _, n := range []int{1<<48 + 1, 1 << 62, math.MaxInt} {
		if b, err := p.Get(n); err == nil {
			b.Release()
			t.Errorf("%d bytes were given", n)
		}
	}
}

// counted is memory of this process that counts what is asked of it.
type counted struct {
	tensor.Anonymous
	maps, retires, unmaps int
	fails                 error
}

func (c *counted) Map(size int) ([]byte, error) {
	if c.fails != nil {
		return nil, c.fails
	}
	c.maps++
	return c.Anonymous.Map(size)
}

func (c *counted) Retire([]byte) { c.retires++ }

func (c *counted) Unmap(mem []byte) {
	c.unmaps++
	c.Anonymous.Unmap(mem)
}

func TestMappedBuffersHaveFourSizesPerPowerOfTwo(t *testing.T) {
	pool := tensor.NewPool(0)
	for n, want := range map[int]int64{
		16 << 10: 16 << 10, 16<<10 + 1: 20 << 10, 20 << 10: 20 << 10, 20<<10 + 1: 24 << 10, 24<<10 + 1: 28 << 10, 28<<10 + 1: 32 << 10,
		32<<10 + 1: 40 << 10, 65 << 10: 80 << 10, 1 << 20: 1 << 20, 3<<20 + 1: 3<<20 + 512<<10, 1<<30 + 1: 1<<30 + 256<<20,
	} {
		b, err := pool.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		if got := pool.Stats().InUse; got != want {
			t.Errorf("a buffer of %d bytes takes %d, want %d", n, got, want)
		}
		b.Release()
	}
}

func TestPoolHandsOutAgainWhatItKeeps(t *testing.T) {
	memory := new(counted)
	pool := tensor.NewPoolOf(memory, 60<<10)
	get := func(n int) *tensor.Buffer {
		b, err := pool.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first, second, third := get(16<<10+1), get(20<<10), get(20<<10-1) // of one size
	first.Release()
	second.Release()
	third.Release()
	if s := pool.Stats(); memory.maps != 3 || memory.retires != 3 || memory.unmaps != 0 || s.Free != 60<<10 || s.InUse != 0 {
		t.Errorf("%+v, %+v: want all three kept", memory, s)
	}
	again, other := get(17<<10), get(20<<10+1)
	if s := pool.Stats(); memory.maps != 4 || s.Free != 40<<10 || s.InUse != 44<<10 {
		t.Errorf("%+v, %+v: want one reused, and one of the next size mapped", memory, s)
	}
	again.Release()
	other.Release() // one too many to keep
	if s := pool.Stats(); memory.unmaps != 1 || s.Free != 60<<10 {
		t.Errorf("%+v, %+v: want what is too much given back", memory, s)
	}
	pool.Trim()
	if s := pool.Stats(); memory.unmaps != 4 || s.Free != 0 {
		t.Errorf("%+v, %+v: want all given back", memory, s)
	}
	memory.fails = errors.New("no memory")
	if _, err := pool.Get(20 << 10); !errors.Is(err, memory.fails) {
		t.Errorf("Get = %v, want the cause", err)
	}
	var packer tensor.Packer
	if _, err := packer.Place(pool, 20<<10, 20<<10); !errors.Is(err, memory.fails) {
		t.Errorf("Place = %v, want the cause", err)
	}
}

func TestPackerPutsSmallTensorsSideBySide(t *testing.T) {
	pool := tensor.NewPool(0)
	var packer tensor.Packer
	place := func(n, expect int) tensor.Ref {
		r, err := packer.Place(pool, n, expect)
		if err != nil {
			t.Fatal(err)
		}
		if r.Length != int64(n) {
			t.Fatalf("%d bytes, want %d", r.Length, n)
		}
		return r
	}
	if empty := place(0, 100); empty.Place != tensor.Nowhere || empty.Buffer != nil {
		t.Errorf("an empty tensor is at %+v", empty)
	}
	a, b, c := place(5, 100), place(8, 95), place(80, 80)
	if a.Offset != 0 || b.Offset != 8 || c.Offset != 16 || a.Buffer != b.Buffer || b.Buffer != c.Buffer {
		t.Errorf("at %d, %d and %d", a.Offset, b.Offset, c.Offset)
	}
	room := a.Buffer.Len() - 96
	last := place(room, room) // fills the buffer to its end
	next := place(1, 1)
	if last.Buffer != a.Buffer || next.Buffer == a.Buffer || next.Offset != 0 {
		t.Errorf("the last of %d bytes is at %d, the next at %d of another buffer: %t", room, last.Offset, next.Offset, next.Buffer != a.Buffer)
	}
	large := place(tensor.MappedThreshold, 1<<20)
	if large.Buffer.Len() != tensor.MappedThreshold || !large.Mapped() || a.Mapped() {
		t.Errorf("a large tensor has a buffer of %d bytes", large.Buffer.Len())
	}
	most := place(tensor.MappedThreshold-1, 1<<20)
	if most.Mapped() {
		t.Error("the largest of the small tensors is mapped")
	}
	for _, r := range []*tensor.Ref{&a, &b, &c, &last, &next, &large, &most} {
		r.Release()
	}
	if s := pool.Stats(); s.InUse != 0 {
		t.Errorf("%d bytes are left in use", s.InUse)
	}
}

func TestReleasedBuffersAreNotTouched(t *testing.T) {
	if !invariant.Enabled {
		t.Skip("assertions are not compiled in")
	}
	released := func() *tensor.Buffer {
		b := tensor.Wrap([]byte{1}, false, nil)
		b.Release()
		return b
	}
	for name, touch := range map[string]func(*tensor.Buffer){
		"bytes": func(b *tensor.Buffer) { b.Bytes() }, "retain": func(b *tensor.Buffer) { b.Retain() }, "release": (*tensor.Buffer).Release,
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a released buffer is not noticed", name)
				}
			}()
			touch(released())
		}()
	}
	held := tensor.Wrap([]byte{1}, false, nil)
	held.Retain().Bytes()
	held.Release()
	held.Release()
}

func TestRefsSayWhereTheyAre(t *testing.T) {
	if b, err := (tensor.Ref{}).Bytes(); b != nil || err != nil {
		t.Errorf("nowhere: %v, %v", b, err)
	}
	heap := tensor.InHeap([]byte("ab"))
	if b, err := heap.Bytes(); string(b) != "ab" || err != nil || heap.Mapped() {
		t.Errorf("heap: %q, %v, mapped %t", b, err, heap.Mapped())
	}
	if (tensor.Ref{}).Mapped() || (tensor.Ref{Place: tensor.Arena}).Mapped() {
		t.Error("what is not local is mapped")
	}
	if r := (tensor.Ref{}).Retain(); r.Buffer != nil {
		t.Error("an empty reference has a buffer")
	}
}

func TestShapesAreComparedByTheirDimensions(t *testing.T) {
	if !(tensor.Shape{1, 2}).Equal(tensor.Shape{1, 2}) || (tensor.Shape{1, 2}).Equal(tensor.Shape{2, 1}) || (tensor.Shape{1}).Equal(nil) {
		t.Error("Equal does not compare dimensions")
	}
	if !(tensor.Shape{0, 3}).Fixed() || (tensor.Shape{3, -1}).Fixed() {
		t.Error("Fixed does not look for variable dimensions")
	}
	if got := tensor.Shape(nil).String(); got != "[]" {
		t.Errorf("a scalar's shape is %s", got)
	}
}
