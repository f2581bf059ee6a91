package blob

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	"gocloud.dev/blob/s3blob"
)

// defaultRegion is that of stores that have none, as most that are not
// Amazon's.
const defaultRegion = "us-east-1"

// searching bounds the search for credentials where none were given: it may ask
// a machine's metadata service, which is not there on most.
const searching = 5 * time.Second

func (s *Stores) openS3(ctx context.Context, b *bucket, at Location, given credential) error {
	loaded, err := config.LoadDefaultConfig(ctx, s.s3Options(given)...)
	if err != nil {
		return unusable(at, err, "see AWS_PROFILE and the files ~/.aws/config and ~/.aws/credentials")
	}
	loaded.Region = cmp.Or(loaded.Region, defaultRegion)
	if b.anonymous, err = s3Anonymous(ctx, loaded, given); err != nil {
		return unusable(at, err, "see AWS_PROFILE and the files ~/.aws/config and ~/.aws/credentials")
	}
	if b.anonymous {
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
	b.Bucket, err = s3blob.OpenBucket(ctx, client, at.Bucket, nil)
	if err != nil {
		return (&Dir{bucket: b, at: at}).explain(ctx, "open", err)
	}
	return nil
}

func (s *Stores) s3Options(given credential) []func(*config.LoadOptions) error {
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

// s3Anonymous reports whether there are no credentials. If somebody gave some,
// that they cannot be found is an error.
func s3Anonymous(ctx context.Context, c aws.Config, given credential) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, searching)
	defer cancel()
	_, err := c.Credentials.Retrieve(ctx)
	if err == nil {
		return false, nil
	}
	asked := given.KeyID != "" || given.Profile != ""
	for _, name := range []string{"AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		asked = asked || os.Getenv(name) != ""
	}
	if asked {
		return false, err
	}
	return true, nil
}
