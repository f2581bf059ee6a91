package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

const (
	headerLength  = "Inference-Header-Content-Length"
	headerTimeout = "X-Request-Timeout"
	headerReason  = "Nereid-Reason" // of an error
	// maxError bounds the JSON of an error, in bytes.
	maxError = 64 << 20
)

type overHTTP struct {
	base   string
	header http.Header
	http   *http.Client
	max    int64 // bytes of a response
}

// HTTP returns a client of the server at address: a host and port, or a URL, whose path may be
// the server's prefix behind a proxy. It opens nothing. With o.TLS an address without a scheme
// means https.
func HTTP(address string, o Options) Client {
	if !strings.Contains(address, "://") {
		scheme := "http"
		if o.TLS != nil {
			scheme = "https"
		}
		address = scheme + "://" + address
	}
	o = o.withDefaults()
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableCompression: true, TLSClientConfig: o.TLS,
		DialContext: (&net.Dialer{Timeout: o.ConnectTimeout}).DialContext, TLSHandshakeTimeout: o.ConnectTimeout,
	}
	return &overHTTP{base: strings.TrimSuffix(address, "/"), header: o.Header, http: &http.Client{Transport: transport}, max: o.MaxResponseBytes}
}

func (c *overHTTP) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

func (c *overHTTP) Metadata(ctx context.Context, model, version string) (*Metadata, error) {
	var wire wireMetadata
	body, _, err := c.call(ctx, http.MethodGet, modelPath(model, version), nil, 0)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &wire); err != nil {
		return nil, fmt.Errorf("read the metadata of model %q: %w", model, err)
	}
	return wire.metadata()
}

func (c *overHTTP) Index(ctx context.Context) ([]Model, error) {
	body, _, err := c.call(ctx, http.MethodPost, "/v2/repository/index", nil, 0)
	if err != nil {
		return nil, err
	}
	models := []Model{}
	if err := json.Unmarshal(body, &models); err != nil {
		return nil, fmt.Errorf("read the repository index: %w", err)
	}
	return models, nil
}

func (c *overHTTP) Infer(ctx context.Context, r *Request) (*Response, error) {
	path, body, header, err := EncodeHTTP(r.GRPC())
	if err != nil {
		return nil, err
	}
	content, length, err := c.call(ctx, http.MethodPost, path, body, header)
	if err != nil {
		return nil, err
	}
	return DecodeHTTP(content, length)
}

func (c *overHTTP) Explain(ctx context.Context, id string) (*infer.Explanation, error) {
	body, _, err := c.call(ctx, http.MethodGet, "/nereid/requests/"+url.PathEscape(id), nil, 0)
	if err != nil {
		return nil, err
	}
	e := new(infer.Explanation)
	if err := json.Unmarshal(body, e); err != nil {
		return nil, fmt.Errorf("the response of %s is no explanation: %w", c.base, err)
	}
	return e, nil
}

func (c *overHTTP) Record(ctx context.Context, r *RecordRequest) (io.ReadCloser, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request for a recording: %w", err)
	}
	response, err := c.do(ctx, http.MethodPost, "/nereid/recordings", body, 0)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

func (c *overHTTP) RegisterMemory(ctx context.Context, name, key string, size int64) error {
	body, err := json.Marshal(map[string]any{"key": key, "offset": 0, "byte_size": size})
	if err != nil {
		return fmt.Errorf("encode the registration of a region: %w", err)
	}
	_, _, err = c.call(ctx, http.MethodPost, "/v2/systemsharedmemory/region/"+url.PathEscape(name)+"/register", body, 0)
	return err
}

func (c *overHTTP) UnregisterMemory(ctx context.Context, name string) error {
	_, _, err := c.call(ctx, http.MethodPost, "/v2/systemsharedmemory/region/"+url.PathEscape(name)+"/unregister", nil, 0)
	return err
}

func modelPath(model, version string) string {
	path := "/v2/models/" + url.PathEscape(model)
	if version != "" {
		path += "/versions/" + url.PathEscape(version)
	}
	return path
}

// do sends a request, of which so much is JSON or 0 where all is, and returns the response of a
// success. The caller closes its body.
func (c *overHTTP) do(ctx context.Context, method, path string, body []byte, header int) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	for name, values := range c.header {
		request.Header[name] = values
	}
	request.Host = c.header.Get("Host") // or that of the URL
	if header > 0 {
		request.Header.Set(headerLength, strconv.Itoa(header))
		request.Header.Set("Content-Type", "application/octet-stream")
	}
	if end, ok := ctx.Deadline(); ok {
		request.Header.Set(headerTimeout, max(time.Until(end), time.Microsecond).String())
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, unreachable(c.base, err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, refusal(response)
	}
	return response, nil
}

// call returns a response's body and how much of it is JSON: all, or less
// before binary tensors.
func (c *overHTTP) call(ctx context.Context, method, path string, body []byte, header int) ([]byte, int, error) {
	response, err := c.do(ctx, method, path, body, header)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, c.max+1))
	if err != nil {
		return nil, 0, fmt.Errorf("read the response of %s: %w", c.base, err)
	}
	if int64(len(content)) > c.max {
		return nil, 0, fmt.Errorf("the response of %s has more than %d bytes", c.base, c.max)
	}
	length, err := strconv.Atoi(response.Header.Get(headerLength))
	if err != nil {
		length = len(content)
	}
	return content, length, nil
}

// unreachable takes the request's method and path off a failure to connect:
// they are not what is wrong.
func unreachable(server string, err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("no response from %s: %w", server, err)
}

// refusal is the error of a response.
func refusal(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxError))
	if err != nil {
		return fmt.Errorf("read the response to %s: %w", response.Request.URL, err)
	}
	var e struct{ Error string }
	if json.Unmarshal(text, &e) != nil || e.Error == "" {
		return fmt.Errorf("the response to %s is %s: %.200s", response.Request.URL, response.Status, text)
	}
	return failed(e.Error, response.Header.Get(headerReason))
}

// failed is an error in the server's words, with the reason that it gave.
func failed(message, reason string) error {
	if reason == "" {
		return errors.New(message)
	}
	return errs.New(errs.Reason(reason), "%s", message)
}
