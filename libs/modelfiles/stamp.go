package modelfiles

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io/fs"
	"time"
)

// stamp is what the file system says about a file's content: while it is the
// same, so is the content, unless it is fresh.
type stamp struct {
	size     int64
	modified int64 // nanoseconds since 1970
	// changed is when anything about the file changed last, which nobody can
	// set; device and inode tell the file itself. They are 0 where the file
	// system does not say.
	changed       int64
	device, inode uint64
	// etag names the content, where a store says so.
	etag ETag
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), modified: info.ModTime().UnixNano()}
	s.etag, _ = info.Sys().(ETag)
	s.changed, s.device, s.inode = identityOf(info)
	return s
}

// How old a change must be for its time to identify the content: another one
// within the resolution of the file system's clock would go unnoticed. That is
// a tick of the kernel where times have fractions, else up to two seconds.
const (
	tick  = 100 * time.Millisecond
	whole = 2 * time.Second
)

// fresh reports whether the file may change once more after now without its
// stamp showing that.
func (s stamp) fresh(now time.Time) bool {
	if s.etag != "" {
		return false
	}
	last := s.changed
	if last == 0 {
		last = s.modified
	}
	resolution := tick
	if last%int64(time.Second) == 0 {
		resolution = whole
	}
	return now.Sub(time.Unix(0, last)) <= resolution
}

// Fingerprint stands for the tree's digest: of files in a store everywhere, else
// on this host until it boots again. Two trees of one fingerprint have one
// content. It is empty where that cannot be said, since a file changed just
// before it was listed or the file system does not tell enough.
func (t *Tree) Fingerprint() string {
	if len(t.files) > 0 && t.files[0].stamp.etag != "" {
		return t.tags()
	}
	host := hostID()
	if host == "" {
		return ""
	}
	total := sha256.New()
	total.Write([]byte(host))
	for i := range t.files {
		f := &t.files[i]
		if f.stamp.inode == 0 || f.stamp.fresh(t.at) {
			return ""
		}
		total.Write(binary.AppendUvarint(nil, uint64(len(f.name))))
		total.Write([]byte(f.name))
		for _, n := range []uint64{uint64(f.stamp.size), uint64(f.stamp.modified), uint64(f.stamp.changed), f.stamp.device, f.stamp.inode} {
			total.Write(binary.LittleEndian.AppendUint64(nil, n))
		}
	}
	return "stat:" + hex.EncodeToString(total.Sum(nil)[:16])
}

// TagPrefix begins fingerprints that are good on every host.
const TagPrefix = "etag:"

// tags is the fingerprint of files that have ETags.
func (t *Tree) tags() string {
	total := sha256.New()
	for i := range t.files {
		f := &t.files[i]
		if f.stamp.etag == "" {
			return ""
		}
		for _, text := range []string{f.name, string(f.stamp.etag)} {
			total.Write(binary.AppendUvarint(nil, uint64(len(text))))
			total.Write([]byte(text))
		}
		total.Write(binary.LittleEndian.AppendUint64(nil, uint64(f.stamp.size)))
	}
	return TagPrefix + hex.EncodeToString(total.Sum(nil)[:16])
}
