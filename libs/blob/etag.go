package blob

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"gocloud.dev/blob"
)

// errChanged says that an object is not the one that was listed.
var errChanged = errors.New("the object is another than the one that was listed")

// etag is what names the content of a listed object: its ETag, its generation,
// or what a file system says.
func etag(o *blob.ListObject) string {
	var (
		inS3    types.Object
		inGCS   storage.ObjectAttrs
		inAzure container.BlobItem
	)
	switch {
	case o.As(&inS3) && aws.ToString(inS3.ETag) != "":
		return aws.ToString(inS3.ETag)
	case o.As(&inGCS):
		return strconv.FormatInt(inGCS.Generation, 10)
	case o.As(&inAzure) && inAzure.Properties != nil && inAzure.Properties.ETag != nil:
		return string(*inAzure.Properties.ETag)
	}
	return made + fmt.Sprintf("%x-%x", o.ModTime.UnixNano(), o.Size)
}

// made begins ETags that are made here, of time and size, where there is none: a
// server that shows files which others put there knows none of them. They cannot
// be conditions of a read.
const made = "~"

// onlyIf makes a read fail if the object has another ETag.
func onlyIf(tag string) func(func(any) bool) error {
	return func(as func(any) bool) error {
		if strings.HasPrefix(tag, made) {
			return nil
		}
		var (
			inS3    *s3.GetObjectInput
			inGCS   **storage.ObjectHandle
			inAzure *azblob.DownloadStreamOptions
		)
		switch {
		case as(&inS3):
			inS3.IfMatch = &tag
		case as(&inGCS):
			generation, err := strconv.ParseInt(tag, 10, 64)
			if err != nil {
				return err
			}
			*inGCS = (*inGCS).Generation(generation)
		case as(&inAzure):
			match := azcore.ETag(tag)
			inAzure.AccessConditions = &azblob.AccessConditions{ModifiedAccessConditions: &azblob.ModifiedAccessConditions{IfMatch: &match}}
		}
		return nil
	}
}

// sameETag reports whether what is read has the ETag, as far as it says: not
// every server that speaks S3 heeds the condition.
func sameETag(r *blob.Reader, tag string) bool {
	var out s3.GetObjectOutput
	if r.As(&out) && !strings.HasPrefix(tag, made) {
		return out.ETag == nil || *out.ETag == tag
	}
	return true
}
