//go:build !linux

package fetch

import "os"

// allocate gives a file its size.
func allocate(file *os.File, size int64) error { return file.Truncate(size) }
