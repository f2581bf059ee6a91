package fetch

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// allocate gives a file its size and, where the file system can, its room on
// the disk.
func allocate(file *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	err := unix.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return file.Truncate(size)
	}
	return err
}
