package source

import (
	"context"
	"strings"
)

// ByURL takes files on this machine from one source and all others from
// another.
type ByURL struct{ Local, Remote Source }

var _ Source = ByURL{}

// Fetch implements [Source].
func (s ByURL) Fetch(ctx context.Context, c Content, progress func(Progress)) (Files, error) {
	if scheme, _, ok := strings.Cut(c.URL, "://"); ok && scheme != "file" {
		return s.Remote.Fetch(ctx, c, progress)
	}
	return s.Local.Fetch(ctx, c, progress)
}
