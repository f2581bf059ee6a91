//go:build unix

package bus

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errLocked says that another open file holds the lock.
var errLocked = errors.New("locked")

// lockFile opens path, makes it if need be, and locks it until the file is
// closed or the process ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
