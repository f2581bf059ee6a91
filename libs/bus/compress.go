package bus

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

const (
	// plain is up to how many bytes a list is stored as it is encoded, for
	// people to read. Beyond it is compressed, to about a twentieth.
	plain = 128 << 10
	// maxInflated bounds what is read of a compressed value, in bytes.
	maxInflated = 64 << 20
)

// gzipMagic begins a compressed value. No JSON text does.
const gzipMagic = "\x1f\x8b"

// pack compresses a large value. Equal values stay equal.
func pack(data []byte) ([]byte, error) {
	if len(data) <= plain {
		return data, nil
	}
	if len(data) > maxInflated {
		return nil, fmt.Errorf("%d bytes, of which no reader takes more than %d", len(data), maxInflated)
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// unpack reverses pack. It may return its argument.
func unpack(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte(gzipMagic)) {
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxInflated+1))
	if err == nil && len(text) > maxInflated {
		err = errors.New("a compressed value of more than 64 MiB")
	}
	return text, err
}
