package rest

import (
	"bytes"
	"io"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// body is a request's body without its content coding, and its size in bytes.
type body struct {
	io.Reader
	size int64
	// spool holds a body whose size was not known in advance, or is nil.
	spool *tensor.Buffer
	// inflated says that fewer bytes than size arrived and were charged, because the body was compressed.
	inflated bool
}

// close releases the body's memory. net/http closes the body itself.
func (c *call) close(b *body) {
	if b.spool != nil {
		c.drop(b.spool)
	}
	*b = body{}
}

// firstPiece is how much memory a tensor gets before any of its bytes arrive, and pieceGrowth the factor by
// which it then grows over what has arrived. A body that only announces a large size therefore holds little
// memory, and an honest one costs only a seventh in extra copies.
const (
	firstPiece  = 1 << 20
	pieceGrowth = 8
)

// fill reads the next n bytes of the body into a buffer, after prefix bytes that the caller sets. The bytes of
// an inflated body are charged first, because its spool is retained until all of them are copied.
func (c *call) fill(b *body, prefix, n int64) (*tensor.Buffer, error) {
	whole, have := prefix+n, prefix
	if b.inflated {
		if err := c.Account.Receive(whole); err != nil {
			return nil, err
		}
	}
	size := min(whole, firstPiece)
	if b.spool != nil { // all of it has arrived
		size = whole
	}
	buf, err := c.pool.Get(int(size))
	for err == nil {
		if _, err = io.ReadFull(b, buf.Bytes()[have:size]); err != nil {
			err = cutOff(err)
			break
		}
		if size == whole {
			return buf, nil
		}
		have, size = size, min(whole, pieceGrowth*size)
		var larger *tensor.Buffer
		if larger, err = c.pool.Get(int(size)); err == nil {
			copy(larger.Bytes(), buf.Bytes())
			buf.Release()
			buf = larger
		}
	}
	if buf != nil {
		buf.Release()
	}
	return nil, err
}

// cutOff returns the error for a body that ends or breaks before its size, unless err is already more specific.
func cutOff(err error) error {
	if errs.Classified(err) {
		return err
	}
	return errs.Wrap(errs.Canceled, err, "the request's body was cut off")
}

// read decodes the body into the call's request.
func (c *call) read() error {
	c.envelope.Reset()
	v, q := c.Target, c.Request
	b := &c.content
	defer c.close(b)
	defer c.Account.EndCoding()
	var err error
	if *b, err = c.open(c.writer, c.http); err != nil {
		return err
	}
	n, err := jsonSize(c.http.Header[headerLength], b.size)
	switch {
	case err != nil:
		return err
	case n == 0: // stated by the header, or an empty body
		return c.readRaw(b, v, q)
	case n > c.options.MaxInput:
		return jsonTooLarge(n, c.options.MaxInput)
	}
	decode := func(json []byte) error { return c.decoder.Decode(json, v.Config, q, &c.envelope) }
	if err := c.readJSON(b, n, decode); err != nil {
		return err
	}
	return c.readBinary(b, b.size-n, v.Ref.Name, q)
}

func jsonTooLarge(n, limit int64) error {
	return errs.New(errs.InputTooLarge, "request JSON size of %d bytes exceeds the maximum allowed value of %d bytes. "+
		"Use --http-max-input-size to increase the limit.", n, limit)
}

// readJSON decodes the first n bytes of the body; large JSON waits for its turn to be decoded. A spool already
// has them in one piece.
func (c *call) readJSON(b *body, n int64, decode func(json []byte) error) error {
	var json []byte
	if b.spool != nil {
		all := b.spool.Bytes()[:b.size]
		json, b.Reader = all[:n], bytes.NewReader(all[n:])
	} else {
		buf, err := c.fill(b, 0, n)
		if err != nil {
			return err
		}
		defer c.drop(buf)
		json = buf.Bytes()
	}
	defer c.Account.EndCoding() // the rest of the body may still have to arrive
	if n >= memory.LargeBody {
		if err := c.Account.StartCoding(c.Context()); err != nil {
			return err
		}
	}
	return decode(json)
}

// jsonSize returns how many bytes of a body are JSON according to the header. Without the header all of them
// are.
func jsonSize(headers []string, size int64) (n int64, err error) {
	if len(headers) == 0 {
		return size, nil
	}
	header := headers[0]
	n, err = strconv.ParseInt(header, 10, 64)
	if err != nil {
		return 0, errs.New(errs.HeaderLengthInvalid, "Unable to parse %s, got: %s", headerLength, header)
	}
	if n < 0 || n > size {
		return 0, errs.New(errs.HeaderLengthInvalid, "inference header size should be in range (0, %d), got: %s", size, header)
	}
	return n, nil
}

// readBinary reads the tensors that follow the JSON, left bytes in all. It reads nothing unless their sizes add
// up to left.
func (c *call) readBinary(b *body, left int64, model string, q *infer.Request) error {
	rest := uint64(left)
	for _, in := range c.envelope.Binary {
		if in.Size > rest {
			return errs.New(errs.ByteSizeMismatch, "unexpected size for input '%s', expecting %d additional bytes for model '%s'",
				q.Inputs[in.Index].Name, in.Size-rest, model)
		}
		rest -= in.Size
	}
	if rest > 0 {
		return errs.New(errs.ByteSizeMismatch, "unexpected additional input data for model '%s'", model)
	}
	for _, in := range c.envelope.Binary {
		if in.Size == 0 {
			continue
		}
		size := int64(in.Size)
		buf, err := c.fill(b, 0, size)
		if err != nil {
			return err
		}
		q.Inputs[in.Index].Data = tensor.InBuffer(buf, 0, size)
	}
	return nil
}
