// Package recording reads and writes recordings: the requests that a gateway received, with
// their times, tenants and contents, and how each ended.
//
// # Format
//
// A recording is the line "nereid recording 1", where 1 is the version of the format, and then a
// stream of zstd. In it each [nereidv1.RecordingPart] follows its length in bytes, a varint as in
// protocol buffers. The first part is the start. A request comes before its end; both have the
// same number. Requests in flight at the end of the recording have no end. The summary is the
// last part: a recording without it was cut off.
package recording

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

const firstLine = "nereid recording 1\n"

// maxPart bounds one part of a recording that is read, in bytes: the largest message of gRPC.
const maxPart = 1 << 31

// window is how far back zstd refers, in bytes. It is most of the memory that a writer or a reader
// takes beside the current part.
const window = 1 << 20

// Memory is the approximate memory of a [Writer], in bytes.
const Memory = 8 * window

// ErrTruncated says that a recording ends before its summary.
var ErrTruncated = errors.New("the recording was cut off")

// AppendPart appends a part with its length.
func AppendPart(b []byte, part *nereidv1.RecordingPart) ([]byte, error) {
	size := proto.Size(part)
	b = binary.AppendUvarint(b, uint64(size))
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, part)
}

// Fields of the messages that [AppendRequest] writes.
const (
	fieldRequest = 2 // of RecordingPart
	fieldMessage = 6 // of RecordedRequest: request
)

// AppendRequest appends a request and its message, which takes the place of r's own, with the part's
// length. The message is encoded where it is to be, so that its contents are copied once.
func AppendRequest(b []byte, r *nereidv1.RecordedRequest, message proto.Message) ([]byte, error) {
	content := proto.Size(message)
	inner := proto.Size(r) + protowire.SizeTag(fieldMessage) + protowire.SizeBytes(content)
	b = slices.Grow(b, inner+2*binary.MaxVarintLen64)
	b = protowire.AppendVarint(b, uint64(protowire.SizeTag(fieldRequest)+protowire.SizeBytes(inner)))
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldRequest, protowire.BytesType), uint64(inner))
	sized := proto.MarshalOptions{UseCachedSize: true}
	b, err := sized.MarshalAppend(b, r)
	if err != nil {
		return nil, err
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldMessage, protowire.BytesType), uint64(content))
	return sized.MarshalAppend(b, message)
}

// Writer writes a recording. One goroutine at a time uses it.
type Writer struct {
	zstd *zstd.Encoder
	b    []byte
}

// NewWriter starts a recording.
func NewWriter(out io.Writer, start *nereidv1.RecordingStart) (*Writer, error) {
	if _, err := io.WriteString(out, firstLine); err != nil {
		return nil, err
	}
	encoder, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(window))
	if err != nil {
		return nil, err
	}
	w := &Writer{zstd: encoder}
	return w, w.write(&nereidv1.RecordingPart{Part: &nereidv1.RecordingPart_Start{Start: start}})
}

// Write writes parts that [AppendPart] has encoded.
func (w *Writer) Write(parts []byte) error {
	_, err := w.zstd.Write(parts)
	return err
}

func (w *Writer) write(part *nereidv1.RecordingPart) (err error) {
	if w.b, err = AppendPart(w.b[:0], part); err != nil {
		return err
	}
	return w.Write(w.b)
}

// Flush writes everything that was given so far.
func (w *Writer) Flush() error { return w.zstd.Flush() }

// Summary summarizes a recording.
type Summary struct {
	// Requests that it contains, and those that it lacks because they arrived faster than they
	// could be written.
	Requests, Lost int64
	// Ended is why: duration, bytes or draining.
	Ended string
}

// Close ends the recording with its summary. It does not close the output.
func (w *Writer) Close(s Summary) error {
	err := w.write(&nereidv1.RecordingPart{Part: &nereidv1.RecordingPart_Summary{Summary: &nereidv1.RecordingSummary{Requests: s.Requests, Lost: s.Lost, Ended: s.Ended}}})
	return errors.Join(err, w.zstd.Close())
}

// Abort ends the recording without a summary: readers see that it was cut off.
func (w *Writer) Abort() { _ = w.zstd.Close() }

// Reader reads a recording.
type Reader struct {
	// Start is the first part.
	Start *nereidv1.RecordingStart

	zstd *zstd.Decoder
	in   *bufio.Reader
	b    bytes.Buffer
	done bool
}

// Is reports whether the input starts as a recording does.
func Is(in *bufio.Reader) bool {
	start, err := in.Peek(len(firstLine) - 2) // without the version
	return err == nil && string(start) == firstLine[:len(firstLine)-2]
}

// NewReader reads the start of a recording. Close it at the end.
func NewReader(in io.Reader) (*Reader, error) {
	line := make([]byte, len(firstLine))
	if _, err := io.ReadFull(in, line); err != nil || string(line) != firstLine {
		return nil, errs.New(errs.ConfigInvalid, "the file is no recording of this version: want one that starts with %q, as nereid record writes it", firstLine[:len(firstLine)-1])
	}
	decoder, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8*window))
	if err != nil {
		return nil, err
	}
	r := &Reader{zstd: decoder, in: bufio.NewReader(decoder)}
	part, err := r.Next()
	if r.Start = part.GetStart(); err == nil && r.Start == nil {
		err = errs.New(errs.ConfigInvalid, "the recording has no start")
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Next returns the next part. After the summary it returns io.EOF, and [ErrTruncated] where there
// is none.
func (r *Reader) Next() (*nereidv1.RecordingPart, error) {
	if r.done {
		return nil, io.EOF
	}
	n, err := binary.ReadUvarint(r.in)
	if err != nil {
		return nil, broken(err)
	}
	if n > maxPart {
		return nil, errs.New(errs.ConfigInvalid, "the recording is damaged: a part has %d bytes", n)
	}
	// The buffer grows with the bytes that come, not with the length that the file states.
	r.b.Reset()
	if _, err := io.CopyN(&r.b, r.in, int64(n)); err != nil {
		return nil, broken(err)
	}
	part := new(nereidv1.RecordingPart)
	if err := proto.Unmarshal(r.b.Bytes(), part); err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the recording is damaged")
	}
	r.done = part.GetSummary() != nil
	return part, nil
}

func broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrTruncated
	}
	return errs.Wrap(errs.ConfigInvalid, err, "the recording is damaged")
}

// Close releases what the reader holds.
func (r *Reader) Close() { r.zstd.Close() }

// Request is a request of a recording with its end.
type Request struct {
	*nereidv1.RecordedRequest
	// End is nil for a request that was in flight when the recording ended.
	End *nereidv1.RecordedEnd
}

// Recording is a whole recording.
type Recording struct {
	Start *nereidv1.RecordingStart
	// Requests are in the order in which they were recorded, which is about that of their times.
	Requests []Request
	// Summary is nil for a recording that was cut off.
	Summary *Summary
}

// Read reads a whole recording into memory. For one that was cut off it returns its parts and
// [ErrTruncated].
func Read(in io.Reader) (*Recording, error) {
	r, err := NewReader(in)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	all := &Recording{Start: r.Start}
	open := make(map[uint64]int)
	for {
		part, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case errors.Is(err, ErrTruncated):
			return all, err
		case err != nil:
			return nil, fmt.Errorf("after %d requests: %w", len(all.Requests), err)
		}
		switch {
		case part.GetRequest() != nil:
			open[part.GetRequest().GetNumber()] = len(all.Requests)
			all.Requests = append(all.Requests, Request{RecordedRequest: part.GetRequest()})
		case part.GetEnd() != nil:
			if at, ok := open[part.GetEnd().GetNumber()]; ok {
				all.Requests[at].End = part.GetEnd()
				delete(open, part.GetEnd().GetNumber())
			}
		case part.GetSummary() != nil:
			s := part.GetSummary()
			all.Summary = &Summary{s.GetRequests(), s.GetLost(), s.GetEnded()}
		}
	}
}
