package worker

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/services/worker/internal/fetch"
)

// Cache configures where the files of models from object stores are stored, and how they are fetched. The workers of
// a host may share one directory.
type Cache struct {
	// Dir is the directory; empty is one in the user's cache directory. It is created when needed.
	Dir string `name:"cache-dir" placeholder:"DIR" group:"Models" help:"Where models from object stores are kept; workers of one host may share it. Without it, nereid/models in the user's directory for caches."`
	// Bytes limits the size of the cache. Contents that no worker reads are removed to make room, least recently used
	// first.
	Bytes int64 `name:"cache-bytes" default:"0" group:"Models" help:"Most bytes of models from object stores that are kept; the longest unused are removed first. 0 is what the disk has."`
	// Concurrency is how many ranges of files are fetched at the same time.
	Concurrency int `name:"download-concurrency" default:"8" group:"Models" help:"How many parts of models are fetched from object stores at the same time."`
	// StallTimeout is in seconds.
	StallTimeout int `name:"download-stall-timeout-secs" default:"120" group:"Models" help:"How long a fetch from an object store that gets no bytes is tried again before the load fails, in seconds."`
}

func (c Cache) fetches() fetch.Config {
	return fetch.Config{
		Dir: cmp.Or(c.Dir, defaultCacheDir()), Bytes: c.Bytes, Concurrency: c.Concurrency,
		StallTimeout: time.Duration(c.StallTimeout) * time.Second,
	}
}

// defaultCacheDir returns a directory that belongs to the user: whatever others could write there would be loaded.
func defaultCacheDir() string {
	base, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "nereid-"+strconv.Itoa(os.Getuid()), "models")
	}
	return filepath.Join(base, "nereid", "models")
}
