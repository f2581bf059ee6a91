package registry

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
)

// writePools brings the bucket pools to hold what is configured.
func (l *leadership) writePools(ctx context.Context) error {
	if l.poolsWritten {
		return nil
	}
	wanted := l.configured.Values()
	for _, key := range slices.Sorted(maps.Keys(l.pools.entries)) {
		if wanted[key] != nil {
			continue
		}
		entry := l.pools.entries[key]
		if err := l.buckets.pools.Delete(ctx, key, entry.Revision); err != nil {
			return err
		}
		l.pools.drop(key, entry.Revision)
	}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		entry := l.pools.entries[key]
		if proto.Equal(entry.Value, wanted[key]) {
			continue
		}
		revision, err := write(ctx, l.buckets.pools, key, wanted[key], entry.Revision)
		if err != nil {
			return err
		}
		l.pools.put(key, wanted[key], revision)
	}
	l.poolsWritten = true
	return nil
}
