// Package scrape reads the metrics that servers expose for Prometheus.
package scrape

import (
	"context"
	"fmt"
	"io"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxBytes bounds a page of metrics that is read.
const maxBytes = 256 << 20

// Read reads a page of metrics, by the names of their families. Where the server cannot be
// reached the error is a [url.Error] with the method as its Op.
func Read(ctx context.Context, url string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s responds %s: want the port of metrics, as in --metrics-port", url, response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, maxBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err)
	}
	return families, nil
}
