package rest

import (
	"io"
	"net/http"
	"strconv"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/core"
)

// body is the body of a request, decompressed, and its size in bytes.
type body struct {
	io.Reader
	size int64
	// spool holds a body whose size was not known beforehand; or nil.
	spool *tensor.Buffer
}

// close gives up the body, which net/http closes itself.
func (b *body) close() {
	if b.spool != nil {
		b.spool.Release()
	}
	*b = body{}
}

// fill takes the next bytes of the body into a buffer.
func (c *call) fill(b *body, n int64) (*tensor.Buffer, error) {
	buf, err := c.pool.Get(int(n))
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(b, buf.Bytes()); err != nil {
		buf.Release()
		return nil, cutOff(err)
	}
	return buf, nil
}

// cutOff is the error for a body that ends or breaks before its size, unless
// err says more.
func cutOff(err error) error {
	if errs.Of(err) != errs.Bug {
		return err
	}
	return errs.Wrap(errs.Cancelled, err, "the request's body was cut off")
}

// read reads the body of r into q. On an error the caller releases q.
func (c *call) read(w http.ResponseWriter, r *http.Request, v *core.Version, q *infer.Request) error {
	c.envelope.Reset()
	b := &c.body
	defer b.close()
	var err error
	if *b, err = c.open(w, r); err != nil {
		return err
	}
	n, given, err := jsonSize(r.Header.Get(headerLength), b.size)
	switch {
	case err != nil:
		return err
	case given && n == 0:
		return c.readRaw(b, v, q)
	case n > c.options.MaxInput:
		return errs.New(errs.InputTooLarge, "request JSON size of %d bytes exceeds the maximum allowed value of %d bytes. "+
			"Use --http-max-input-size to increase the limit.", n, c.options.MaxInput)
	}
	json, err := c.fill(b, n)
	if err != nil {
		return err
	}
	err = c.decoder.Decode(json.Bytes(), v.Config, q, &c.envelope)
	json.Release()
	if err != nil {
		return err
	}
	return c.readBinary(b, b.size-n, v.Ref.Name, q)
}

// jsonSize returns how many bytes of a body are JSON by the header that says
// so, and whether there is that header. Without it all are.
func jsonSize(header string, size int64) (n int64, given bool, err error) {
	if header == "" {
		return size, false, nil
	}
	n, err = strconv.ParseInt(header, 10, 64)
	if err != nil {
		return 0, true, errs.New(errs.HeaderLengthInvalid, "Unable to parse %s, got: %s", headerLength, header)
	}
	if n < 0 || n > size {
		return 0, true, errs.New(errs.HeaderLengthInvalid, "inference header size should be in range (0, %d), got: %s", size, header)
	}
	return n, true, nil
}

// readBinary reads the tensors that follow the JSON, left bytes in all. It
// reads nothing unless their sizes add up to that.
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
		buf, err := c.fill(b, size)
		if err != nil {
			return err
		}
		q.Inputs[in.Index].Data = tensor.InBuffer(buf, 0, size)
	}
	return nil
}
