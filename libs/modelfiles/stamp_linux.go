package modelfiles

import (
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// identityOf is the part of a file's stamp that no program can set.
func identityOf(info fs.FileInfo) (changed int64, device, inode uint64) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, 0
	}
	return s.Ctim.Nano(), s.Dev, s.Ino
}

// hostID names this machine from one boot to the next, by which device
// numbers are given; empty if that is not known.
func hostID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
