package gateway

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/services/gateway/internal/cache"
	"github.com/nereid-serving/nereid/services/gateway/internal/redis"
)

// Cache configures the response cache.
type Cache struct {
	Config []string `name:"cache-config" sep:"none" secret:"password" placeholder:"CACHE,KEY=VALUE" group:"Response cache" help:"Keep the responses of models with response_cache. local,size=BYTES keeps them in the memory of this process, up to that size; redis,host=HOST in a Redis, where all settings are of one cache: one flag for each, or commas between them."`
	// Bytes is Triton's older setting for a local cache.
	Bytes int64 `name:"response-cache-byte-size" default:"0" group:"Response cache" help:"Size of a local cache in bytes, as --cache-config=local,size=BYTES; 0 is none."`
}

// cacheSettings are the parsed settings of --cache-config. A gateway has at most one cache.
type cacheSettings struct {
	name   string // empty for none
	values map[string]string
}

// settings parses the flags; all of them must name the same cache. Errors have the reason config_invalid and
// never contain a setting's value, which may be a secret.
func (c *Cache) settings() (s cacheSettings, err error) {
	if c.Bytes < 0 || c.Bytes > 0 && len(c.Config) > 0 {
		return s, errs.New(errs.ConfigInvalid, "--response-cache-byte-size is %d: want 0 or more, and 0 beside --cache-config, which says the size of a local cache", c.Bytes)
	}
	if c.Bytes > 0 {
		return cacheSettings{"local", map[string]string{"size": strconv.FormatInt(c.Bytes, 10)}}, nil
	}
	s.values = make(map[string]string)
	for _, text := range c.Config {
		name, rest, _ := strings.Cut(text, ",")
		if s.name != "" && s.name != name {
			return s, errs.New(errs.ConfigInvalid, "found multiple cache configurations, but only a single cache is currently supported: --cache-config names one, local or redis")
		}
		if s.name = name; name != "local" && name != "redis" {
			return s, errs.New(errs.ConfigInvalid, "--cache-config: there is no such cache: want local,size=BYTES or redis,host=HOST")
		}
		for pair := range strings.SplitSeq(rest, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if _, twice := s.values[key]; !ok || twice {
				return s, errs.New(errs.ConfigInvalid, "--cache-config=%s: setting %d is not of the form KEY=VALUE, or given twice: want %s", name, len(s.values)+1, wanted(name))
			}
			s.values[key] = value
		}
	}
	return s, nil
}

func wanted(cache string) string {
	if cache == "local" {
		return "local,size=BYTES with 1 byte or more"
	}
	return "redis,host=HOST and, as needed, port, user, password, db, connect_timeout, socket_timeout, wait_timeout, pool_size, tls_enabled, cert, key, cacert, sni"
}

// localSize returns the size of a local cache in bytes.
func (s *cacheSettings) localSize() (int64, error) {
	size, err := strconv.ParseInt(s.values["size"], 10, 64)
	if len(s.values) != 1 || err != nil || size < 1 {
		return 0, errs.New(errs.ConfigInvalid, "--cache-config=local: want %s", wanted("local"))
	}
	return size, nil
}

// Default timeouts for a Redis cache, in milliseconds.
const (
	connectTimeout = 100
	socketTimeout  = 100
	waitTimeout    = 100
)

// redis returns the options of a Redis cache. The user and the password default to Triton's environment
// variables.
func (s *cacheSettings) redis() (o redis.Options, err error) {
	r := settingsReader{left: maps.Clone(s.values)}
	o = redis.Options{
		Address:  net.JoinHostPort(r.text("host", ""), strconv.Itoa(r.number("port", 6379, 65535))),
		Username: r.text("user", os.Getenv("TRITONCACHE_REDIS_USERNAME")), Password: r.text("password", os.Getenv("TRITONCACHE_REDIS_PASSWORD")),
		Database: r.number("db", 0, 1<<20), Connections: r.number("pool_size", 10, 1000),
		Connect: r.milliseconds("connect_timeout", connectTimeout), Socket: r.milliseconds("socket_timeout", socketTimeout),
		Wait: r.milliseconds("wait_timeout", waitTimeout),
	}
	o.TLS = r.tls(r.text("tls_enabled", "false"))
	switch {
	case s.values["host"] == "":
		r.wrong("host", "the name or address of a Redis")
	case o.Connections == 0:
		r.wrong("pool_size", "a number from 1 to 1000")
	}
	for key := range r.left {
		r.wrong(key, wanted("redis"))
	}
	return o, r.err
}

// settingsReader removes settings from a map as it reads them and keeps the first error.
type settingsReader struct {
	left map[string]string
	err  error
}

func (r *settingsReader) wrong(key, want string) {
	if r.err == nil {
		r.err = errs.New(errs.ConfigInvalid, "--cache-config=redis: the setting %s is missing, unknown or wrong: want %s", key, want)
	}
}

// text returns and removes a setting; absent is its default.
func (r *settingsReader) text(key, absent string) string {
	value, ok := r.left[key]
	if delete(r.left, key); !ok {
		return absent
	}
	return value
}

// number reads a number from 0 to most.
func (r *settingsReader) number(key string, absent, most int) int {
	n, err := strconv.Atoi(r.text(key, strconv.Itoa(absent)))
	if err != nil || n < 0 || n > most {
		r.wrong(key, "a number from 0 to "+strconv.Itoa(most))
	}
	return n
}

// milliseconds reads a duration of at most one minute. 0, which makes Triton wait forever, selects the default.
func (r *settingsReader) milliseconds(key string, absent int) time.Duration {
	return time.Duration(cmp.Or(r.number(key, absent, 60_000), absent)) * time.Millisecond
}

// tls returns the TLS configuration for a Redis, or nil if TLS is off. It reads the certificate files.
func (r *settingsReader) tls(enabled string) *tls.Config {
	certificate, key, roots := r.text("cert", ""), r.text("key", ""), r.text("cacert", "")
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: r.text("sni", "")}
	switch enabled {
	case "false":
		return nil
	case "true":
	default:
		r.wrong("tls_enabled", "true or false")
		return nil
	}
	if certificate != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			r.wrong("cert", fmt.Sprintf("a certificate in PEM, and its key in the setting key: %v", err))
			return nil
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if roots != "" {
		pem, err := os.ReadFile(roots)
		c.RootCAs = x509.NewCertPool()
		if err != nil || !c.RootCAs.AppendCertsFromPEM(pem) {
			r.wrong("cacert", fmt.Sprintf("a file of certificates in PEM, not %s", roots))
		}
	}
	return c
}

// read parses the flags. It returns the size of a local cache, the options of a Redis, or neither. It fails as
// settings does.
func (c *Cache) read() (size int64, o *redis.Options, err error) {
	s, err := c.settings()
	switch {
	case err != nil || s.name == "":
		return 0, nil, err
	case s.name == "local":
		size, err = s.localSize()
		return size, nil, err
	}
	options, err := s.redis()
	return 0, &options, err
}

// openCache makes the configured response cache, which stores nothing if none is configured. It also returns
// the Redis client to run beside it, or nil.
func openCache(c *Cache, deps Deps) (made *cache.Cache, values *redis.Values, err error) {
	size, o, err := c.read()
	if err != nil {
		return nil, nil, err
	}
	var store cache.Store
	switch {
	case size > 0:
		local := cache.NewLocal(size)
		deps.Metrics.MustRegister(local.Collectors()...)
		store = local
	case o != nil:
		values = redis.New(*o, deps.Log)
		deps.Metrics.MustRegister(values.Collectors()...)
		store = cache.NewRemote(values)
	}
	report := deps.CacheUsed
	if report == nil {
		report = func(string, infer.CacheUse) {}
	}
	made = cache.New(store, report)
	made.TooLarge = func(bytes, limit int64) { // the message starts as Triton's does
		deps.Log.Warn("Failed to insert key into response cache: the response is larger than an entry may be", zap.Int64("bytes", bytes), zap.Int64("limit", limit))
	}
	deps.Metrics.MustRegister(made.Collectors()...)
	return made, values, nil
}
