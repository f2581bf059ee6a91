package bus

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
)

func TestLargeValuesAreCompressed(t *testing.T) {
	for _, size := range []int{0, 1, plain, plain + 1, 4 << 20} {
		text := []byte(strings.Repeat(`{"name":"m"},`, size/13+1)[:size])
		packed, err := pack(text)
		if err != nil {
			t.Fatal(err)
		}
		if stays := bytes.Equal(packed, text); stays != (size <= plain) || len(packed) > plain {
			t.Errorf("%d bytes are stored as %d", size, len(packed))
		}
		again, err := pack(text)
		if err != nil || !bytes.Equal(packed, again) {
			t.Errorf("%d bytes are not stored alike twice: %v", size, err)
		}
		if got, err := unpack(packed); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d bytes are read back as %d, %v", size, len(got), err)
		}
	}
}

func TestDamagedAndHostileValuesAreRefused(t *testing.T) {
	packed, err := pack(bytes.Repeat([]byte("models "), plain))
	if err != nil {
		t.Fatal(err)
	}
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	for range maxInflated>>20 + 1 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"cut off": packed[:len(packed)/2], "no header": []byte(gzipMagic), "damaged": append(bytes.Clone(packed[:len(packed)-8]), make([]byte, 8)...),
		"more than readers take": bomb.Bytes(),
	} {
		if got, err := unpack(data); err == nil {
			t.Errorf("%s: %d bytes without an error", name, len(got))
		}
	}
	if _, err := pack(make([]byte, maxInflated+1)); err == nil {
		t.Error("a value that no reader takes is packed")
	}
}
