package gateway

import (
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
)

// Cache configures the response cache.
type Cache struct {
	Config []string `name:"cache-config" sep:"none" placeholder:"CACHE,KEY=VALUE" group:"Response cache" help:"Keep the responses of models with response_cache: local,size=BYTES keeps them in the memory of this process, up to that size."`
	// Bytes is Triton's older setting for a local cache.
	Bytes int64 `name:"response-cache-byte-size" default:"0" group:"Response cache" help:"Size of a local cache in bytes, as --cache-config=local,size=BYTES; 0 is none."`
}

// size is that of the local cache, 0 for none. Errors have the reason config_invalid.
func (c *Cache) size() (size int64, err error) {
	if c.Bytes < 0 || c.Bytes > 0 && len(c.Config) > 0 {
		return 0, errs.New(errs.ConfigInvalid, "--response-cache-byte-size is %d: want 0 or more, and 0 beside --cache-config, which says the size of a local cache", c.Bytes)
	}
	size = c.Bytes
	for _, text := range c.Config {
		if size, err = localSize(text); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// localSize reads local,size=BYTES.
func localSize(text string) (int64, error) {
	name, setting, _ := strings.Cut(text, ",")
	if name != "local" {
		return 0, errs.New(errs.ConfigInvalid, "--cache-config=%s: there is no cache %q: want local,size=BYTES", text, name)
	}
	key, value, _ := strings.Cut(setting, "=")
	size, err := strconv.ParseInt(value, 10, 64)
	if key != "size" || err != nil || size < 1 {
		return 0, errs.New(errs.ConfigInvalid, "--cache-config=%s: want local,size=BYTES with 1 byte or more", text)
	}
	return size, nil
}

// newCache makes the response cache that the settings ask for, or nil.
func newCache(c *Cache, deps Deps) (*cache.Cache, error) {
	size, err := c.size()
	if size == 0 || err != nil {
		return nil, err
	}
	report := deps.CacheUsed
	if report == nil {
		report = func(string, infer.CacheUse) {}
	}
	made := cache.New(size, report)
	deps.Metrics.MustRegister(made.Collectors()...)
	return made, nil
}
