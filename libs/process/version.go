package process

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Release is the version of this source, which all its programs share.
const Release = "0.1.0"

// Version says what the program was built from: the release, the commit where
// it is known, Go's version and the platform.
func Version() string {
	return fmt.Sprintf("%s%s %s %s/%s", Release, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// revision is the commit that the program was built from, if that is known.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return " (" + s.Value[:12] + ")"
		}
	}
	return ""
}
