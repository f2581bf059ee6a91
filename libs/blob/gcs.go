package blob

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

const (
	gcsVariable = "GOOGLE_APPLICATION_CREDENTIALS"
	gcsScope    = "https://www.googleapis.com/auth/devstorage.read_only"
	gcsWriting  = "https://www.googleapis.com/auth/devstorage.read_write"
	gcsEndpoint = "https://storage.googleapis.com"
	// gcsEmulatorVariable names another server, as host:port or as a URL. It gets
	// the credentials that are given for the bucket, and not those of the environment.
	gcsEmulatorVariable = "STORAGE_EMULATOR_HOST"
)

// gcsStore is Google Cloud Storage, read by its JSON API. Google's own client
// brings gRPC's xDS, Envoy's messages and OpenTelemetry for a second protocol
// (docs/adr/0047).
func gcsStore() provider {
	return provider{
		scheme: "gs",
		forms:  "gs://bucket/path",
		parse:  (*Location).bucketAndPrefix,
		base:   func(l Location) string { return "gs://" + l.Bucket },
		credential: func(entry json.RawMessage) (c credential, err error) {
			return c, json.Unmarshal(entry, &c.file)
		},
		open:   openGCS,
		rights: "storage.objects.list and storage.objects.get",
		response: func(err error) (r response, ok bool) {
			if errors.As(err, &r) {
				return r, true
			}
			var token *oauth2.RetrieveError
			if !errors.As(err, &token) || token.Response == nil {
				return r, false
			}
			r = response{status: token.Response.StatusCode, code: token.ErrorCode, text: "no token for the credentials"}
			if r.status < http.StatusInternalServerError { // such as 400 invalid_grant
				r.status = http.StatusUnauthorized
			}
			return r, true
		},
	}
}

func openGCS(ctx context.Context, s *Stores, at Location, given credential) (b store, anonymous bool, err error) {
	bucket := gcsBucket{client: s.client, endpoint: gcsEndpoint, name: at.Bucket, attempts: s.options.Attempts}
	if host := os.Getenv(gcsEmulatorVariable); host != "" {
		if !strings.Contains(host, "://") {
			host = "http://" + host
		}
		bucket.endpoint = strings.TrimRight(host, "/")
		if given == (credential{}) {
			return bucket, true, nil
		}
	}
	scope := gcsScope
	if s.options.Write {
		scope = gcsWriting
	}
	found, err := gcsCredentials(ctx, given, scope)
	if err != nil {
		return nil, false, unusable(at, err, "see the file that "+gcsVariable+" or "+credentialVariable+" names")
	}
	if found != nil {
		bucket.client = &http.Client{Transport: &oauth2.Transport{Base: s.client.Transport, Source: found.TokenSource}}
	}
	return bucket, found == nil, nil
}

// gcsCredentials finds those that were given, or those of the environment; nil
// if there are none.
func gcsCredentials(ctx context.Context, given credential, scope string) (*google.Credentials, error) {
	background := context.WithoutCancel(ctx) // tokens are renewed later
	if given.file != "" {
		text, err := os.ReadFile(given.file)
		if err != nil {
			return nil, err
		}
		return google.CredentialsFromJSON(background, text, scope) //nolint:staticcheck // the operator's own file, of any type
	}
	found, err := google.FindDefaultCredentials(background, scope)
	if err == nil {
		return found, nil
	}
	if os.Getenv(gcsVariable) != "" {
		return nil, err
	}
	return nil, nil
}

// gcsBucket is one bucket. The ETag of an object is its generation, which names
// its content; what the API calls etag also changes with the metadata.
type gcsBucket struct {
	client         *http.Client
	endpoint, name string
	attempts       int
}

// mostOfPage is how large a page of a listing may be: a thousand keys, each of 1 KiB
// at most before it is escaped, with their other fields.
const mostOfPage = 16 << 20

func (b gcsBucket) list(ctx context.Context, prefix, token string) (page []Object, next string, err error) {
	query := url.Values{
		"prefix": {prefix}, "maxResults": {fmt.Sprint(pageSize)},
		"fields": {"nextPageToken,items(name,size,generation,updated)"},
	}
	if token != "" {
		query.Set("pageToken", token)
	}
	response, err := b.get(ctx, "", query, nil)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	var listing struct {
		Items []struct {
			Name       string
			Size       int64 `json:",string"`
			Generation string
			Updated    time.Time
		}
		NextPageToken string
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, mostOfPage)).Decode(&listing); err != nil {
		return nil, "", err
	}
	for _, item := range listing.Items {
		page = append(page, Object{Name: item.Name, ETag: item.Generation, Size: item.Size, Modified: item.Updated})
	}
	return page, listing.NextPageToken, nil
}

func (b gcsBucket) read(ctx context.Context, key, tag string, offset, length int64) (body io.ReadCloser, served string, err error) {
	query := url.Values{"alt": {"media"}}
	if tag != "" {
		query.Set("generation", tag)
	}
	response, err := b.get(ctx, "/"+url.PathEscape(key), query, http.Header{
		"Range": {fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)},
		// Else what was stored as gzip comes unpacked, and has no ranges.
		"Accept-Encoding": {"gzip"},
	})
	if err != nil {
		return nil, "", err
	}
	if response.StatusCode != http.StatusPartialContent && offset > 0 {
		_ = response.Body.Close()
		return nil, "", errors.New("the store gave the whole object for a range")
	}
	return response.Body, response.Header.Get("X-Goog-Generation"), nil
}

// gcsPause is the first pause before a request is tried again. It doubles, and a
// random part of it is waited, as Google asks:
// https://cloud.google.com/storage/docs/retry-strategy
const gcsPause = time.Second

// get asks for something below the bucket's objects. What the store says instead
// comes as a response.
func (b gcsBucket) get(ctx context.Context, path string, query url.Values, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		b.endpoint+"/storage/v1/b/"+url.PathEscape(b.name)+"/o"+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	if header != nil {
		request.Header = header
	}
	for pause := gcsPause; ; pause *= 2 {
		got, err := b.client.Do(request)
		if err == nil && got.StatusCode < http.StatusMultipleChoices {
			return got, nil
		}
		again := err != nil
		if err == nil {
			err = gcsRefusal(got)
			again = got.StatusCode >= http.StatusInternalServerError || got.StatusCode == http.StatusTooManyRequests || got.StatusCode == http.StatusRequestTimeout
		}
		if b.attempts--; b.attempts == 0 || !again {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(rand.N(pause)):
		}
	}
}

// gcsRefusal reads what the store said, and closes its body.
func gcsRefusal(got *http.Response) error {
	defer got.Body.Close()
	var body struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	said := response{status: got.StatusCode}
	const most = 64 << 10
	if json.NewDecoder(io.LimitReader(got.Body, most)).Decode(&body) != nil {
		return said // proxies speak no JSON
	}
	said.text = short(cmp.Or(body.Error.Message, http.StatusText(got.StatusCode)))
	if len(body.Error.Errors) > 0 {
		said.code = short(body.Error.Errors[0].Reason)
	}
	return said
}
