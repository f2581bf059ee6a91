package blob

import (
	"context"
	"crypto/sha256"
)

// SHA256 is the digest of a whole object where the store keeps it, as S3 does
// of those that were put with that checksum; else known is false. It costs a
// request and no bytes.
func (d *Dir) SHA256(ctx context.Context, o Object) (sum [sha256.Size]byte, known bool) {
	store, keeps := d.bucket.store.(digester)
	if !keeps || isSynthetic(o.ETag) {
		return sum, false
	}
	return store.sha256(ctx, d.at.key(o.Name), o.ETag)
}
