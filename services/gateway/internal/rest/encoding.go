package rest

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// The content codings. HTTP's "deflate" is the zlib format.
const (
	identity = "identity"
	gzipped  = "gzip"
	deflated = "deflate"
)

// open returns the body of r without its content coding.
func (c *call) open(w http.ResponseWriter, r *http.Request) (body, error) {
	encoding := identity
	if given, ok := r.Header["Content-Encoding"]; ok { // an empty one is no known coding
		encoding = given[0]
	}
	switch encoding {
	case identity:
		return c.openPlain(r)
	case gzipped, deflated:
		b, err := c.openPlain(r)
		if err == nil {
			err = c.receiveAll(&b)
		}
		if err != nil {
			return body{}, err
		}
		defer c.close(&b)
		return c.unfold(bytes.NewReader(b.spool.Bytes()[:b.size]))
	}
	w.Header().Set("Accept-Encoding", "gzip, deflate")
	return body{}, errs.New(errs.EncodingUnsupported, "Unsupported compression type")
}

func (c *call) openPlain(r *http.Request) (body, error) {
	switch {
	case r.ContentLength < 0:
		b, err := c.spool(r.Body, c.options.MaxBody, bodyTooLarge)
		if err != nil {
			return body{}, cutOff(err)
		}
		return b, nil
	case r.ContentLength > c.options.MaxBody:
		return body{}, bodyTooLarge(c.options.MaxBody)
	}
	return body{Reader: r.Body, size: r.ContentLength}, nil
}

// receiveAll waits for the whole body. Only after that does net/http notice that the client disconnects, and
// decompression then never waits for the client.
func (c *call) receiveAll(b *body) error {
	if b.spool != nil {
		return nil
	}
	buf, err := c.fill(b, 0, b.size)
	if err == nil {
		b.spool = buf
	}
	return err
}

// unfold decompresses a body. A large one holds its turn to be decoded, see [memory.Account.StartCoding], until
// [call.readJSON] has used it, so that only a few of them are in memory at a time.
func (c *call) unfold(compressed *bytes.Reader) (body, error) {
	in, err := c.inflate.reset(compressed)
	if err != nil {
		return body{}, badStream(err)
	}
	b, err := c.spool(&turn{Reader: in, call: c}, c.options.MaxInput, inflatedTooLarge)
	if err != nil {
		return body{}, badStream(err)
	}
	if compressed.Len() > 0 {
		c.close(&b)
		return body{}, errs.New(errs.EncodingInvalid, "failed to decompress the request body: more follows the compressed data")
	}
	b.inflated = true
	return b, nil
}

// turn makes a body wait for its turn to be decoded once it is large.
type turn struct {
	io.Reader
	call *call
	size int
}

// Read implements io.Reader.
func (t *turn) Read(p []byte) (int, error) {
	if t.size >= memory.LargeBody {
		if err := t.call.Account.StartCoding(t.call.Context()); err != nil {
			return 0, err
		}
	}
	n, err := t.Reader.Read(p)
	t.size += n
	return n, err
}

func bodyTooLarge(limit int64) error {
	return errs.New(errs.BodyTooLarge, "the request's body exceeds the maximum of %d bytes", limit)
}

func inflatedTooLarge(limit int64) error {
	return errs.New(errs.InputTooLarge, "Decompressed data size exceeds the maximum allowed value of %d bytes. "+
		"Use --http-max-input-size to increase the limit.", limit)
}

// firstSpool is the first guess at the size, in bytes, of a body of unknown size.
const firstSpool = 32 << 10

// spool reads all of in, at most limit bytes, into memory that grows with what has actually arrived.
func (c *call) spool(in io.Reader, limit int64, tooLarge func(int64) error) (body, error) {
	buf, err := c.hold(firstSpool)
	if err != nil {
		return body{}, err
	}
	for size := 0; ; {
		n, err := in.Read(buf.Bytes()[size:])
		size += n
		switch {
		case int64(size) > limit:
			err = tooLarge(limit)
		case errors.Is(err, io.EOF):
			return body{Reader: bytes.NewReader(buf.Bytes()[:size]), size: int64(size), spool: buf}, nil
		case err != nil:
		case size == buf.Len():
			buf, err = c.grow(buf)
		}
		if err != nil {
			c.drop(buf)
			return body{}, err
		}
	}
}

// hold charges n bytes and then returns a buffer of that size.
func (c *call) hold(n int) (*tensor.Buffer, error) {
	if err := c.Account.Receive(int64(n)); err != nil {
		return nil, err
	}
	return c.pool.Get(n)
}

// drop releases a charged buffer.
func (c *call) drop(buf *tensor.Buffer) {
	n := int64(buf.Len())
	buf.Release()
	c.Account.Return(n)
}

// grow returns a buffer of twice the size with the bytes of buf, and drops buf. On an error it returns buf.
func (c *call) grow(buf *tensor.Buffer) (*tensor.Buffer, error) {
	larger, err := c.hold(2 * buf.Len())
	if err != nil {
		return buf, err
	}
	copy(larger.Bytes(), buf.Bytes())
	c.drop(buf)
	return larger, nil
}

// badStream returns the error for a body that cannot be decompressed.
func badStream(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errs.Wrap(errs.EncodingInvalid, err, "failed to decompress the request body: it ends within the compressed data")
	}
	for _, corrupt := range []error{gzip.ErrHeader, gzip.ErrChecksum, zlib.ErrHeader, zlib.ErrChecksum, zlib.ErrDictionary} {
		if errors.Is(err, corrupt) {
			return errs.Wrap(errs.EncodingInvalid, err, "failed to decompress the request body: %s", corrupt)
		}
	}
	var corrupt flate.CorruptInputError
	if errors.As(err, &corrupt) {
		return errs.Wrap(errs.EncodingInvalid, err, "failed to decompress the request body: %s", corrupt)
	}
	return err
}

// inflater decompresses bodies, one after another.
type inflater struct {
	gzip *gzip.Reader
	zlib zlibReader
}

// zlibReader is what the readers of zlib.NewReader implement.
type zlibReader interface {
	io.Reader
	zlib.Resetter
}

// gzipMark is the first byte of gzip.
const gzipMark = 0x1f

// reset starts a body. As in Triton, its first byte decides between gzip and zlib, whatever its coding is
// called.
func (f *inflater) reset(in io.Reader) (io.Reader, error) {
	var first [1]byte
	if _, err := io.ReadFull(in, first[:]); err != nil {
		return nil, err
	}
	in = io.MultiReader(bytes.NewReader(first[:]), in)
	switch {
	case first[0] == gzipMark && f.gzip != nil:
		return f.gzip, f.gzip.Reset(in)
	case first[0] == gzipMark:
		r, err := gzip.NewReader(in)
		f.gzip = r
		return r, err
	case f.zlib != nil:
		return f.zlib, f.zlib.Reset(in, nil)
	}
	r, err := zlib.NewReader(in)
	f.zlib, _ = r.(zlibReader)
	return r, err
}

// deflater compresses responses, one after another.
type deflater struct {
	gzip *gzip.Writer
	zlib *zlib.Writer
	out  compressed
}

// compressed collects the bytes of a response. They are charged before memory is allocated for them.
type compressed struct {
	bytes   []byte
	account *memory.Account
}

// Write implements io.Writer.
func (c *compressed) Write(p []byte) (int, error) {
	if need := len(c.bytes) + len(p); need > cap(c.bytes) {
		room := max(2*cap(c.bytes), need, firstSpool)
		if err := c.account.Retain(int64(room)); err != nil {
			return 0, err
		}
		smaller := c.bytes
		c.bytes = append(make([]byte, 0, room), smaller...)
		if cap(smaller) > keepJSON { // a smaller one may be from before the call, and was not charged
			c.account.Drop(int64(cap(smaller)))
		}
	}
	c.bytes = append(c.bytes, p...)
	return len(p), nil
}

// run compresses the parts as one stream, which is charged to the account until the call ends. The result is
// valid until the next run.
func (f *deflater) run(encoding string, account *memory.Account, parts ...[]byte) ([]byte, error) {
	if cap(f.out.bytes) > keepJSON {
		f.out.bytes = nil
	}
	f.out = compressed{bytes: f.out.bytes[:0], account: account}
	w := f.writer(encoding)
	for _, part := range parts {
		if _, err := w.Write(part); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return f.out.bytes, nil
}

// writer returns a compressor that favors speed over size: the bytes are mostly tensors, which hardly shrink.
func (f *deflater) writer(encoding string) io.WriteCloser {
	if encoding == gzipped {
		if f.gzip == nil {
			f.gzip, _ = gzip.NewWriterLevel(&f.out, gzip.BestSpeed)
		}
		f.gzip.Reset(&f.out)
		return f.gzip
	}
	if f.zlib == nil {
		f.zlib, _ = zlib.NewWriterLevel(&f.out, zlib.BestSpeed)
	}
	f.zlib.Reset(&f.out)
	return f.zlib
}

// acceptedEncoding returns the content coding for a response: the supported one with the highest weight in
// Accept-Encoding, or the first of several with that weight.
func acceptedEncoding(header string) string {
	best, weight := identity, 0.0
	for header != "" {
		var item string
		item, header, _ = strings.Cut(header, ",")
		name, parameters, weighted := strings.Cut(item, ";")
		q := 1.0
		if weighted {
			q = quality(parameters)
		}
		switch name = strings.TrimSpace(name); name {
		case identity, gzipped, deflated:
			if q > weight {
				best, weight = name, q
			}
		}
	}
	return best
}

// quality parses a weight such as q=0.5. A malformed one is 0.
func quality(parameters string) float64 {
	text, ok := strings.CutPrefix(strings.TrimSpace(parameters), "q=")
	if !ok {
		return 0
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		return 0
	}
	return q
}
