package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// partSize is how much of an object is written at a time, in bytes. It is what a write takes in
// memory. S3 takes 10,000 parts: 80 GB.
const partSize = 8 << 20

// Write writes an object of unknown length. The object appears when the whole content is
// written, and not at all if that fails. An error of the content is returned unchanged.
func (d *Dir) Write(ctx context.Context, name string, content io.Reader) error {
	from := &source{Reader: content}
	err := d.bucket.write(ctx, d.at.key(name), from)
	switch {
	case err == nil:
		return nil
	case from.err != nil:
		return fmt.Errorf("write %s: %w", name, from.err)
	}
	return d.wrapError(ctx, "write "+name, err)
}

// source remembers why it broke.
type source struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// part reads the next part. last says that there is no more.
func part(content io.Reader, into []byte) (n int, last bool, err error) {
	n, err = io.ReadFull(content, into)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return n, true, nil
	}
	return n, false, err
}

func (b s3Bucket) write(ctx context.Context, key string, content io.Reader) (err error) {
	buffer := make([]byte, partSize)
	n, last, err := part(content, buffer)
	if err != nil {
		return err
	}
	if last {
		_, err := b.client.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: bytes.NewReader(buffer[:n])})
		return err
	}
	upload, err := b.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // else the parts stay, and cost
			_, aborted := b.client.AbortMultipartUpload(context.WithoutCancel(ctx), &s3.AbortMultipartUploadInput{Bucket: &b.name, Key: &key, UploadId: upload.UploadId})
			err = errors.Join(err, aborted)
		}
	}()
	var parts []types.CompletedPart
	for number := int32(1); ; number++ {
		if n > 0 {
			sent, err := b.client.UploadPart(ctx, &s3.UploadPartInput{
				Bucket: &b.name, Key: &key, UploadId: upload.UploadId, PartNumber: aws.Int32(number), Body: bytes.NewReader(buffer[:n]),
			})
			if err != nil {
				return err
			}
			parts = append(parts, types.CompletedPart{ETag: sent.ETag, PartNumber: aws.Int32(number)})
		}
		if last {
			break
		}
		if n, last, err = part(content, buffer); err != nil {
			return err
		}
	}
	_, err = b.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &b.name, Key: &key, UploadId: upload.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	return err
}

// write uploads in parts, as for an object of unknown length:
// https://cloud.google.com/storage/docs/performing-resumable-uploads
func (b gcsBucket) write(ctx context.Context, key string, content io.Reader) error {
	session, err := b.send(ctx, http.MethodPost, b.endpoint+"/upload/storage/v1/b/"+url.PathEscape(b.name)+"/o?"+url.Values{"uploadType": {"resumable"}, "name": {key}}.Encode(), nil, nil)
	if err != nil {
		return err
	}
	_ = session.Body.Close()
	place := session.Header.Get("Location")
	buffer := make([]byte, partSize)
	for at := 0; ; {
		n, last, err := part(content, buffer)
		if err != nil {
			if response, left := b.send(context.WithoutCancel(ctx), http.MethodDelete, place, nil, nil); left == nil {
				_ = response.Body.Close() // what stays is forgotten after a week
			}
			return err
		}
		total, span := "*", fmt.Sprintf("bytes %d-%d/", at, at+n-1)
		if at += n; last {
			total = fmt.Sprint(at)
		}
		if n == 0 {
			span = "bytes */"
		}
		response, err := b.send(ctx, http.MethodPut, place, buffer[:n], http.Header{"Content-Range": {span + total}})
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if last {
			return nil
		}
	}
}

// send sends a request of an upload. What the store says instead comes as a response.
func (b gcsBucket) send(ctx context.Context, method, url string, body []byte, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	got, err := b.client.Do(request)
	if err != nil {
		return nil, err
	}
	if got.StatusCode >= http.StatusMultipleChoices && got.StatusCode != http.StatusPermanentRedirect { // which asks for the next part
		return nil, gcsRefusal(got)
	}
	return got, nil
}

func (c azureContainer) write(ctx context.Context, key string, content io.Reader) error {
	_, err := c.client.NewBlockBlobClient(key).UploadStream(ctx, content, &blockblob.UploadStreamOptions{BlockSize: partSize, Concurrency: 1})
	return err
}

func (d directoryStore) write(_ context.Context, key string, content io.Reader) error {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return err
	}
	defer root.Close()
	if dir := path.Dir(key); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	partly := key + ".part"
	file, err := root.Create(partly)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err = errors.Join(err, file.Close()); err == nil {
		err = root.Rename(partly, key)
	}
	if err != nil {
		return errors.Join(err, root.Remove(partly))
	}
	return nil
}
