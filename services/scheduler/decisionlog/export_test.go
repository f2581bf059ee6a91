package decisionlog

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// Resum returns a log with the checksums that its blocks should have, so that what
// is damaged is their content.
func Resum(text []byte) []byte {
	text = bytes.Clone(text)
	for rest := text[bytes.IndexByte(text, '\n')+1:]; len(rest) >= head; {
		n := int(binary.LittleEndian.Uint32(rest))
		if n < 0 || n > len(rest)-head {
			break
		}
		binary.LittleEndian.PutUint32(rest[4:], crc32.Checksum(rest[head:head+n], castagnoli()))
		rest = rest[head+n:]
	}
	return text
}
