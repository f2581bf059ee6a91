package codec_test

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/tensor"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// What is written of an exchange is what the generated types read, and what is
// read again.
func TestExchangeMessages(t *testing.T) {
	data := bytes.Repeat([]byte("some bytes"), 2000)
	named := tensor.Ref{Place: tensor.Remote, Holder: 1, Region: 2, Slot: 4096, Generation: 3, Offset: 5, Length: 6}
	w := codec.NewWriter(new(codec.Spares))
	whole := tensor.InHeap(data)
	defer whole.Release()
	if err := errors.Join(
		w.Fetch(7, named), w.Fetched(8, whole), w.Unfetched(9, errs.New(errs.TransferFailed, "gone")),
		w.Part(10, 1<<40, whole), w.Taken(11), w.Fetched(12, tensor.InHeap(nil)),
		w.Room(13, 14),
		w.Release(15),
	); err != nil {
		t.Fatal(err)
	}
	envelope := w.Take()
	defer envelope.Free()
	var got nereidv1.TensorEnvelope
	if err := proto.Unmarshal(envelope.Materialize(), &got); err != nil {
		t.Fatal(err)
	}
	want := []*nereidv1.TensorMessage{
		{Message: &nereidv1.TensorMessage_Fetch{Fetch: &nereidv1.Fetch{Fetch: 7, Slot: &nereidv1.RemoteSlot{
			Holder: 1, Region: 2, Slot: 4096, Generation: 3, Offset: 5, Length: 6,
		}}}},
		{Message: &nereidv1.TensorMessage_Fetched{Fetched: &nereidv1.FetchedChunk{Fetch: 8, Data: data}}},
		{Message: &nereidv1.TensorMessage_Fetched{Fetched: &nereidv1.FetchedChunk{Fetch: 9, Error: &nereidv1.Error{
			Reason: "transfer_failed", Message: "gone",
		}}}},
		{Message: &nereidv1.TensorMessage_Part{Part: &nereidv1.Part{Number: 10, ByteSize: 1 << 40, Data: data}}},
		{Message: &nereidv1.TensorMessage_Taken{Taken: &nereidv1.Taken{Responses: 11}}},
		{Message: &nereidv1.TensorMessage_Fetched{Fetched: &nereidv1.FetchedChunk{Fetch: 12}}},
		{Message: &nereidv1.TensorMessage_Room{Room: &nereidv1.Room{Request: 13, Responses: 14}}},
		{Message: &nereidv1.TensorMessage_Release{Release: &nereidv1.Release{Kept: 15}}},
	}
	for i, m := range got.GetMessages() {
		if !proto.Equal(m, want[i]) {
			t.Errorf("message %d is %v, want %v", i, m, want[i])
		}
	}
	r, seen := codec.NewReader(tensor.NewPool(0)), 0
	err := r.Each(envelope, func(member protowire.Number, b codec.Body) error {
		defer func() { seen++ }()
		return checkRead(t, r, member, b, want[seen], named)
	})
	if err != nil || seen != len(want) {
		t.Errorf("read %d messages of %d: %v", seen, len(want), err)
	}
}

func checkRead(t *testing.T, r *codec.Reader, member protowire.Number, b codec.Body, want *nereidv1.TensorMessage, named tensor.Ref) error {
	switch member {
	case codec.ExchangeFetch:
		number, got, err := r.Fetch(b)
		if number != want.GetFetch().GetFetch() || got != named {
			t.Errorf("read fetch %d of %+v", number, got)
		}
		return err
	case codec.ExchangeTaken:
		n, err := r.Taken(b)
		if n != want.GetTaken().GetResponses() {
			t.Errorf("read %d taken", n)
		}
		return err
	case codec.ExchangeRelease:
		kept, err := r.Release(b)
		if kept != want.GetRelease().GetKept() {
			t.Errorf("a release of %d", kept)
		}
		return err
	case codec.ExchangeRoom:
		request, n, err := r.Room(b)
		if request != want.GetRoom().GetRequest() || n != want.GetRoom().GetResponses() {
			t.Errorf("read %d responses to request %d", n, request)
		}
		return err
	case codec.ExchangePart:
		c, err := r.Part(b)
		checkChunk(t, c, want.GetPart().GetNumber(), want.GetPart().GetByteSize(), want.GetPart().GetData(), nil)
		return err
	}
	c, err := r.Fetched(b)
	checkChunk(t, c, want.GetFetched().GetFetch(), 0, want.GetFetched().GetData(), want.GetFetched().GetError())
	return err
}

func checkChunk(t *testing.T, c codec.Chunk, number, size uint64, data []byte, failure *nereidv1.Error) {
	t.Helper()
	got := make([]byte, c.Len())
	c.CopyTo(got)
	if c.Number != number || c.Size != size || !bytes.Equal(got, data) || (c.Err != nil) != (failure != nil) {
		t.Errorf("read number %d, size %d, %d bytes, %v; want %d, %d, %d bytes, %v", c.Number, c.Size, len(got), c.Err, number, size, len(data), failure)
	}
}
