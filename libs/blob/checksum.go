package blob

import (
	"context"
	"crypto/sha256"
)

// SHA256 returns the digest of a whole object if the store has it, as S3 does for objects
// uploaded with that checksum; otherwise known is false. It costs one request and transfers no
// content.
func (d *Dir) SHA256(ctx context.Context, o Object) (sum [sha256.Size]byte, known bool) {
	store, keeps := d.bucket.store.(digester)
	if !keeps || isSynthetic(o.ETag) {
		return sum, false
	}
	return store.sha256(ctx, d.at.key(o.Name), o.ETag)
}
