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
	if n, err := tensor.CountBytes(data); n != 2 || err != nil {
		t.Fatalf("CountBytes = %d, %v, want 2", n, err)
	}
	for cut, want := range map[int]error{1: tensor.ErrIncompleteLength, 3: tensor.ErrIncompleteLength, 5: tensor.ErrIncompleteString} {
		if _, err := tensor.CountBytes(data[:cut]); !errors.Is(err, want) {
			t.Errorf("first %d bytes: %v, want %v", cut, err, want)
		}
	}
	if _, _, err := tensor.CutBytes([]byte{0xff, 0xff, 0xff, 0xff, 1}); !errors.Is(err, tensor.ErrIncompleteString) {
		t.Errorf("huge length: %v", err)
	}
	var short *tensor.IncompleteError
	if _, err := tensor.CountBytes(data[:5]); !errors.As(err, &short) || short.Want != 2 || short.Have != 1 || err.Error() != "incomplete string data: want 2 bytes, have 1" {
		t.Errorf("one byte of two: %v", err)
	}
}

func FuzzCountBytes(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 'a', 'b'})
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := tensor.CountBytes(data)
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
