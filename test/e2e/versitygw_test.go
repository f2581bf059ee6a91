package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/nereid-serving/nereid/test/ports"
)

// versitygw starts the server that NEREID_VERSITYGW names, which speaks S3 and
// checks signatures.
func versitygw(t *testing.T) *bucket {
	t.Helper()
	program := os.Getenv("NEREID_VERSITYGW")
	if program == "" {
		t.Skip("NEREID_VERSITYGW names no versitygw: make s3-test fetches it")
	}
	const key, secret = "nereid", "no-secret-at-all"
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "models"), 0o700); err != nil {
		t.Fatal(err)
	}
	var free ports.Picker // it cannot say which one the system gave it
	address := fmt.Sprintf("127.0.0.1:%d", free.Free(t))
	command := exec.Command(program, "--port", address, "--quiet", "posix", root)
	command.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+key, "ROOT_SECRET_KEY="+secret)
	background(t, command)
	t.Setenv("AWS_ACCESS_KEY_ID", key)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	endpoint := "http://" + address
	client := s3.New(s3.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1", UsePathStyle: true, Credentials: credentials.NewStaticCredentialsProvider(key, secret, ""),
	})
	await(t, "versitygw to answer", nil, func() bool {
		_, err := client.ListBuckets(t.Context(), &s3.ListBucketsInput{})
		return err == nil
	})
	return &bucket{t: t, url: "s3://" + address + "/models", wrong: "AWS_SECRET_ACCESS_KEY=another-secret", put: func(key string, data []byte) error {
		_, err := client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("models"), Key: &key, Body: bytes.NewReader(data)})
		return err
	}}
}
