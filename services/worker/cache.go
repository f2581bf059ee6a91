package worker

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nereid-serving/nereid/services/worker/internal/fetch"
)

// Cache says where the files of models from object stores are kept, and how
// they are fetched. The workers of a host may share one directory.
type Cache struct {
	// Dir is the directory; empty is that of the user's caches. It is made when
	// it is needed.
	Dir string
	// Bytes bounds what it holds; 0 is as much as the disk has. Contents that
	// no worker reads are removed for others, those first whose last use is
	// longest ago.
	Bytes int64
	// Concurrency is how many ranges of files are fetched at the same time.
	Concurrency int
	// Patience is for how long a fetch that does not get on is tried again
	// before the load fails.
	Patience time.Duration
}

func (c Cache) fetches() fetch.Config {
	return fetch.Config{Dir: cmp.Or(c.Dir, defaultCacheDir()), Bytes: c.Bytes, Concurrency: c.Concurrency, Patience: c.Patience}
}

// defaultCacheDir is a directory of the user's own: what others could write
// there would be loaded.
func defaultCacheDir() string {
	base, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "nereid-"+strconv.Itoa(os.Getuid()), "models")
	}
	return filepath.Join(base, "nereid", "models")
}
