package registry

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/services/registry/internal/publish"
)

// writePools brings the bucket pools to hold what is configured.
func (t *term) writePools(ctx context.Context) error {
	if t.poolsWritten {
		return nil
	}
	wanted := publish.Pools(t.cfg.Pools).Values()
	for _, key := range slices.Sorted(maps.Keys(t.pools.entries)) {
		if wanted[key] != nil {
			continue
		}
		entry := t.pools.entries[key]
		if err := t.buckets.pools.Delete(ctx, key, entry.Revision); err != nil {
			return err
		}
		t.pools.drop(key, entry.Revision)
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		entry := t.pools.entries[key]
		if proto.Equal(entry.Value, wanted[key]) {
			continue
		}
		revision, err := write(ctx, t.buckets.pools, key, wanted[key], entry.Revision)
		if err != nil {
			return err
		}
		t.pools.put(key, wanted[key], revision)
	}
	t.poolsWritten = true
	return nil
}
