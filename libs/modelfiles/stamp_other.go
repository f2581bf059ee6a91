//go:build !linux

package modelfiles

import "io/fs"

func identityOf(fs.FileInfo) (changed int64, device, inode uint64) { return 0, 0, 0 }

func hostID() string { return "" }
