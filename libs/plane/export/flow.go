package export

import (
	"errors"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/tensor"
)

const (
	// partBytes is the size of the parts in which large tensors go: small
	// enough that little waits behind one.
	partBytes = 256 << 10
	// windowMessages and windowBytes are the credit that each side gives.
	windowMessages = 4096
	windowBytes    = 8 << 20
	// bulkBytes is what of the credit parts leave to small messages.
	bulkBytes = windowBytes / 2
)

// flow sends what one side of a stream has for the other as far as the other's
// credit goes: whole messages in their order, and beside them the parts of
// large tensors, in turn, so that nothing small waits for something large. Its
// owner's lock guards it.
type flow struct {
	link *link.Link
	// sent gets each response that has gone, and whether an error went in its place.
	sent func(r *infer.Response, failed bool)

	messages, bytes int64
	whole           []item
	bulk            []*transfer
}

// item is a response with its outputs as they are named.
type item struct {
	named *infer.Response
	size  int64           // bytes that the message carries
	of    *infer.Response // with the outputs themselves
}

// transfer is a large tensor on its way in parts.
type transfer struct {
	data tensor.Ref // with a reference
	at   int64
	part func(w *codec.Writer, data tensor.Ref) error
	done func() // after the last part; it may add whole messages; may be nil
}

// credit adds what the peer gave, up to a whole window, and sends what has
// waited for it. One message may have used more than a window, and brings it
// back at once.
func (f *flow) credit(c codec.Credit) error {
	f.messages = min(f.messages+int64(c.Messages), windowMessages)
	f.bytes = min(f.bytes+int64(min(c.Bytes, maxArriving)), windowBytes)
	return f.pump()
}

// pump sends what may go. What it cannot send stays: the stream is over.
func (f *flow) pump() error {
	for f.messages > 0 {
		var err error
		switch {
		case len(f.whole) > 0 && f.bytes > 0:
			err = f.sendWhole()
		case len(f.bulk) > 0 && f.bytes > bulkBytes:
			err = f.sendPart()
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *flow) sendWhole() error {
	i := f.whole[0]
	err := f.link.Write(func(w *codec.Writer) error { return w.Response(codec.ExchangeResponse, i.named) })
	failed := err != nil && !errors.Is(err, link.ErrClosed)
	if failed { // it is the response that cannot be sent
		lost := infer.Fail(i.of.Work, errs.Wrap(errs.TransferFailed, err, "the answer could not be sent: %v", err))
		err = f.link.Write(func(w *codec.Writer) error { return w.Response(codec.ExchangeResponse, lost) })
	}
	if err != nil {
		return err
	}
	f.messages, f.bytes = f.messages-1, f.bytes-i.size
	f.whole[0] = item{}
	f.whole = f.whole[1:]
	f.sent(i.of, failed)
	return nil
}

func (f *flow) sendPart() error {
	t := f.bulk[0]
	part := t.data
	part.Offset, part.Length = part.Offset+t.at, min(partBytes, t.data.Length-t.at)
	if err := f.link.Write(func(w *codec.Writer) error { return t.part(w, part) }); err != nil {
		return err
	}
	f.messages, f.bytes = f.messages-1, f.bytes-part.Length
	t.at += part.Length
	f.bulk[0] = nil
	f.bulk = f.bulk[1:]
	if t.at < t.data.Length {
		f.bulk = append(f.bulk, t)
		return nil
	}
	t.data.Release()
	if t.done != nil {
		t.done()
	}
	return nil
}

// end releases what was on its way and returns the messages that have not
// gone.
func (f *flow) end() []item {
	for _, t := range f.bulk {
		t.data.Release()
	}
	left := f.whole
	f.whole, f.bulk, f.messages, f.bytes = nil, nil, 0, 0
	return left
}

// intake is the credit that this side has given. It is owned by the receiving
// goroutine.
type intake struct {
	link            *link.Link
	messages, bytes int64 // taken in, and not given again
}

// begin gives the first credit.
func (i *intake) begin() error { return i.give(windowMessages, windowBytes) }

// took gives credit back for a message with so many bytes, now and then.
func (i *intake) took(size int) error {
	i.messages, i.bytes = i.messages+1, i.bytes+int64(size)
	if i.messages < windowMessages/4 && i.bytes < windowBytes/4 {
		return nil
	}
	messages, bytes := i.messages, i.bytes
	i.messages, i.bytes = 0, 0
	return i.give(messages, bytes)
}

func (i *intake) give(messages, bytes int64) error {
	c := codec.Credit{Messages: uint32(messages), Bytes: uint64(bytes)}
	return i.link.Write(func(w *codec.Writer) error { return w.Credit(codec.ExchangeCredit, c) })
}
