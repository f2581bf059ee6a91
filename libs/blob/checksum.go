package blob

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// SHA256 is the digest of a whole object where the store keeps it, as S3 does
// of those that were put with that checksum; else known is false. It costs a
// request and no bytes.
func (d *Dir) SHA256(ctx context.Context, o Object) (sum [sha256.Size]byte, known bool) {
	var client *s3.Client
	if !d.bucket.As(&client) || strings.HasPrefix(o.ETag, made) {
		return sum, false
	}
	key := d.at.key(o.Name)
	head, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &d.at.Bucket, Key: &key, IfMatch: &o.ETag, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil || aws.ToString(head.ETag) != o.ETag || head.ChecksumType == types.ChecksumTypeComposite {
		return sum, false // it will be read, and then fail with a better cause
	}
	raw, err := base64.StdEncoding.DecodeString(aws.ToString(head.ChecksumSHA256))
	if err != nil || len(raw) != len(sum) {
		return sum, false
	}
	return [sha256.Size]byte(raw), true
}
