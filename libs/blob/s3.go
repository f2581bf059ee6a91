package blob

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
)

// defaultRegion is that of stores that have none, as most that are not
// Amazon's.
const defaultRegion = "us-east-1"

// s3Store is S3 and what speaks its protocol.
func s3Store() provider {
	return provider{
		scheme: "s3",
		forms:  "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
		parse:  func(l *Location, rest string) bool { return l.bucketAndPrefix(l.cutEndpoint(rest)) },
		base: func(l Location) string {
			if l.Endpoint == "" {
				return "s3://" + l.Bucket
			}
			return "s3://" + strings.TrimPrefix(l.Endpoint, "http://") + "/" + l.Bucket
		},
		credential: func(entry json.RawMessage) (c credential, err error) {
			return c, json.Unmarshal(entry, &c)
		},
		open:   openS3,
		rights: "s3:ListBucket on the bucket and s3:GetObject on its objects",
		response: func(err error) (r response, ok bool) {
			var e smithy.APIError
			if !errors.As(err, &e) {
				return r, false
			}
			return response{code: e.ErrorCode(), text: short(e.ErrorMessage())}, true
		},
	}
}

// cutEndpoint cuts the server off, if the rest of a URL names one.
func (l *Location) cutEndpoint(rest string) string {
	protocol := "http"
	if before, after, ok := strings.Cut(rest, "://"); ok && (before == "http" || before == "https") {
		protocol, rest = before, after
	} else if host, _, _ := strings.Cut(rest, "/"); !hasPort(host) {
		return rest
	}
	host, rest, _ := strings.Cut(rest, "/")
	l.Endpoint = protocol + "://" + host
	return rest
}

func hasPort(host string) bool {
	_, port, err := net.SplitHostPort(host)
	return err == nil && port != ""
}

// s3Bucket is one bucket.
type s3Bucket struct {
	client *s3.Client
	name   string
}

func (b s3Bucket) list(ctx context.Context, prefix, token string) (page []Object, next string, err error) {
	input := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix, MaxKeys: aws.Int32(pageSize)}
	if token != "" {
		input.ContinuationToken = &token
	}
	response, err := b.client.ListObjectsV2(ctx, input)
	if err != nil {
		return nil, "", err
	}
	for _, o := range response.Contents {
		page = append(page, Object{
			Name: aws.ToString(o.Key), ETag: aws.ToString(o.ETag), Size: aws.ToInt64(o.Size), Modified: aws.ToTime(o.LastModified),
		})
	}
	return page, aws.ToString(response.NextContinuationToken), nil
}

func (b s3Bucket) read(ctx context.Context, key, tag string, offset, length int64) (body io.ReadCloser, served string, err error) {
	input := &s3.GetObjectInput{Bucket: &b.name, Key: &key, Range: aws.String(fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))}
	if tag != "" {
		input.IfMatch = &tag
	}
	response, err := b.client.GetObject(ctx, input)
	if err != nil {
		return nil, "", err
	}
	return response.Body, aws.ToString(response.ETag), nil
}

// sha256 asks for the digest that objects have which were put with one.
func (b s3Bucket) sha256(ctx context.Context, key, tag string) (sum [sha256.Size]byte, known bool) {
	head, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key, IfMatch: &tag, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil || aws.ToString(head.ETag) != tag || head.ChecksumType == types.ChecksumTypeComposite {
		return sum, false // it will be read, and then fail with a better cause
	}
	raw, err := base64.StdEncoding.DecodeString(aws.ToString(head.ChecksumSHA256))
	if err != nil || len(raw) != len(sum) {
		return sum, false
	}
	return [sha256.Size]byte(raw), true
}

// credentialsTimeout bounds the search for credentials where none were given: it may ask
// a machine's metadata service, which is not there on most.
const credentialsTimeout = 5 * time.Second

func openS3(ctx context.Context, s *Stores, at Location, given credential) (b store, anonymous bool, err error) {
	loaded, err := config.LoadDefaultConfig(ctx, s3Options(s, given)...)
	if err != nil {
		return nil, false, unusable(at, err, "see AWS_PROFILE and the files ~/.aws/config and ~/.aws/credentials")
	}
	loaded.Region = cmp.Or(loaded.Region, defaultRegion)
	if anonymous, err = s3Anonymous(ctx, loaded, given); err != nil {
		return nil, false, unusable(at, err, "see AWS_PROFILE and the files ~/.aws/config and ~/.aws/credentials")
	}
	if anonymous {
		loaded.Credentials = aws.AnonymousCredentials{}
	}
	client := s3.NewFromConfig(loaded, func(o *s3.Options) {
		if at.Endpoint != "" {
			o.BaseEndpoint = &at.Endpoint
		}
		// Servers at an address of their own rarely have a name for each bucket.
		o.UsePathStyle = o.BaseEndpoint != nil
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired // ranges have none
	})
	return s3Bucket{client: client, name: at.Bucket}, anonymous, nil
}

func s3Options(s *Stores, given credential) []func(*config.LoadOptions) error {
	options := []func(*config.LoadOptions) error{
		// A client of its own kind, to which AWS_CA_BUNDLE is added.
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(bound(s.options.Stall))),
		config.WithRetryMaxAttempts(s.options.Attempts),
		config.WithLogger(logging.Nop{}), // its warnings come as errors too
	}
	if given.Region != "" {
		options = append(options, config.WithRegion(given.Region))
	}
	if given.Profile != "" {
		options = append(options, config.WithSharedConfigProfile(given.Profile))
	}
	if given.KeyID != "" {
		options = append(options, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(given.KeyID, given.SecretKey, given.SessionToken)))
	}
	return options
}

// s3Anonymous reports whether there are no credentials. If some were given,
// that they cannot be found is an error.
func s3Anonymous(ctx context.Context, c aws.Config, given credential) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	defer cancel()
	_, err := c.Credentials.Retrieve(ctx)
	if err == nil {
		return false, nil
	}
	configured := given.KeyID != "" || given.Profile != ""
	for _, name := range []string{"AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		configured = configured || os.Getenv(name) != ""
	}
	if configured {
		return false, err
	}
	return true, nil
}
