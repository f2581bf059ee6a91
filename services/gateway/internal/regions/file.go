package regions

import (
	"context"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/errs"
)

// reserved are the prefixes of names that clients cannot register, because servers use them for their own
// shared memory. Triton refuses the first.
func reserved() []string { return []string{"triton_python_backend_shm_region_", "nereid"} }

// file is an open file in memory, whose bytes from offset on belong to a region.
type file struct {
	descriptor int
	is         inode
	offset     int64
	region     string
}

// inode identifies a file, whatever its names are.
type inode struct{ device, number uint64 }

func (f file) identity() any { return f.is }

// openFile opens the file that a key names, as shm_open does. The file must be in the directory itself: the key
// has no slashes except at its start, and symbolic links are not followed. Anything but a regular file, such as
// a FIFO, is refused without waiting for another process. The server's own memory has no name in the directory,
// and names that it might use in the future are reserved.
func openFile(directory, region, key string) (file, error) {
	name := strings.TrimLeft(key, "/")
	if name == "" && key != "" {
		return file{}, errs.New(errs.InvalidParameter, "failed to register shared memory region '%s': invalid shm key '%s'", region, key)
	}
	for _, prefix := range reserved() {
		if strings.HasPrefix(name, prefix) {
			return file{}, errs.New(errs.InvalidParameter, "cannot register shared memory region '%s' with key '%s' as the key contains the reserved prefix '%s'", region, key, prefix)
		}
	}
	if name == "" || name == "." || name == ".." || len(name) > unix.NAME_MAX || strings.ContainsAny(name, "/\x00") {
		return file{}, cannotOpen(key)
	}
	in, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return file{}, cannotOpen(key)
	}
	defer unix.Close(in) //nolint:errcheck // nothing was written
	const how = unix.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	descriptor, err := unix.Openat(in, name, how, 0)
	if err != nil {
		return file{}, cannotOpen(key)
	}
	f := file{descriptor: descriptor}
	var s unix.Stat_t
	if err := unix.Fstat(descriptor, &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFREG {
		f.close(context.Background())
		return file{}, cannotOpen(key)
	}
	f.is = inode{s.Dev, s.Ino}
	return f, nil
}

// cannotOpen does not say why: whether a file exists is for those to know who may use it.
func cannotOpen(key string) error {
	return errs.New(errs.RegionUnavailable, "Unable to open shared memory region: '%s'", key)
}

func (f file) size() (int64, error) {
	var s unix.Stat_t
	err := unix.Fstat(f.descriptor, &s)
	return s.Size, err
}

func (f file) close(context.Context) { _ = unix.Close(f.descriptor) }

// readAt implements memory.
func (f file) readAt(_ context.Context, data []byte, offset uint64) error {
	at := f.offset + int64(offset) //nolint:gosec // within the region, which is within the file
	for len(data) > 0 {
		n, err := unix.Pread(f.descriptor, data, at)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return f.changed(err)
		case n == 0:
			return f.changed(io.ErrUnexpectedEOF)
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

// writeAt implements memory. It never extends the file.
func (f file) writeAt(_ context.Context, data []byte, offset uint64) error {
	at := f.offset + int64(offset) //nolint:gosec // within the region, which is within the file
	size, err := f.size()
	if err == nil && size < at+int64(len(data)) {
		err = io.ErrUnexpectedEOF // writing would extend the truncated file again
	}
	for err == nil && len(data) > 0 {
		var n int
		n, err = unix.Pwrite(f.descriptor, data, at)
		if errors.Is(err, unix.EINTR) {
			n, err = 0, nil
		}
		data, at = data[max(n, 0):], at+int64(max(n, 0))
	}
	return f.changed(err)
}

// changed returns the error for a failed access to the file. The region's owner may see its text.
func (f file) changed(err error) error {
	if err == nil {
		return nil
	}
	why := "it cannot be read or written"
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		why = "its file is shorter than when the region was registered"
	case errors.Is(err, unix.ENOSPC):
		why = "there is no memory left for it"
	}
	return errs.Wrap(errs.RegionChanged, err, "shared memory region '%s' has changed: %s", f.region, why)
}
