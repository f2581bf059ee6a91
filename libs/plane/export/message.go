package export

import (
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/shm"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func hello(i Identity) *nereidv1.TensorHello {
	return &nereidv1.TensorHello{Protocol: link.Protocol, Id: i.ID, Epoch: i.Epoch, Release: i.Release}
}

// announce makes an arena known to the peer.
func announce(link *link.Link, arena *shm.Arena) error {
	if arena == nil {
		return nil
	}
	a := arena.Announcement()
	m := &nereidv1.Region{Region: shm.Number, Path: a.Path, ByteSize: uint64(a.Size), Mark: a.Mark}
	return link.Write(func(w *codec.Writer) error { return w.Message(codec.ExchangeRegion, m) })
}

// opened tells the peer that its region is read here.
func opened(link *link.Link, m *nereidv1.Region) error {
	opened := &nereidv1.Opened{Region: m.GetRegion()}
	return link.Write(func(w *codec.Writer) error { return w.Message(codec.ExchangeOpened, opened) })
}

// open maps a peer's memory; nil where it cannot be mapped, as between hosts.
func open(m *nereidv1.Region) *shm.Region {
	if m.GetRegion() != shm.Number {
		return nil
	}
	region, err := shm.Open(shm.Announcement{Path: m.GetPath(), Size: int64(m.GetByteSize()), Mark: m.GetMark()})
	if err != nil {
		return nil // the peer sends bytes
	}
	return region
}
