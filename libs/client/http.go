package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

const (
	headerLength  = "Inference-Header-Content-Length"
	headerTimeout = "X-Request-Timeout"
	// maxAnswer bounds the JSON of answers other than inferences, in bytes.
	maxAnswer = 64 << 20
)

type overHTTP struct {
	base   string
	header http.Header
	http   *http.Client
}

// HTTP returns a client of the server at address: a host and port, or a URL
// whose path may say where behind a proxy the server is. It opens nothing.
// With o.TLS an address without a scheme is one of https.
func HTTP(address string, o Options) Client {
	if !strings.Contains(address, "://") {
		scheme := "http"
		if o.TLS != nil {
			scheme = "https"
		}
		address = scheme + "://" + address
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true, TLSClientConfig: o.TLS}
	return &overHTTP{base: strings.TrimSuffix(address, "/"), header: o.Header, http: &http.Client{Transport: transport}}
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
	body, header, err := encode(r)
	if err != nil {
		return nil, err
	}
	answer, length, err := c.call(ctx, http.MethodPost, modelPath(r.Model, r.Version)+"/infer", body, header)
	if err != nil {
		return nil, err
	}
	return decode(answer, length)
}

func modelPath(model, version string) string {
	path := "/v2/models/" + url.PathEscape(model)
	if version != "" {
		path += "/versions/" + url.PathEscape(version)
	}
	return path
}

// call returns an answer's body and how much of it is JSON: all, or less
// before binary tensors.
func (c *overHTTP) call(ctx context.Context, method, path string, body []byte, header int) ([]byte, int, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("make a request: %w", err)
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
		return nil, 0, unreachable(c.base, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, 0, refusal(response)
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, 0, fmt.Errorf("read the answer of %s: %w", c.base, err)
	}
	length, err := strconv.Atoi(response.Header.Get(headerLength))
	if err != nil {
		length = len(answer)
	}
	return answer, length, nil
}

// unreachable takes the request's method and path off a failure to connect:
// they are not what is wrong.
func unreachable(server string, err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return fmt.Errorf("no answer from %s: %w", server, err)
}

// refusal is the error that the server answered with.
func refusal(response *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer to %s: %w", response.Request.URL, err)
	}
	var e struct{ Error, Reason string }
	if json.Unmarshal(text, &e) != nil || e.Error == "" {
		return fmt.Errorf("%s answered %s: %.200s", response.Request.URL, response.Status, text)
	}
	return answered(e.Error, e.Reason)
}

// answered is an error in the server's words, with the reason that it gave.
func answered(message, reason string) error {
	if reason == "" {
		return errors.New(message)
	}
	return errs.New(errs.Reason(reason), "%s", message)
}
