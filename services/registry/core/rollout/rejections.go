package rollout

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Rejections remember, by a model's key, the value that failed to load last. A poll does not
// load its content again until the content changes or, if the cause may pass, until a pause is
// over, which doubles with each failure. It is not safe for concurrent use.
type Rejections struct {
	first, longest time.Duration
	byKey          map[string]rejection
}

type rejection struct {
	value    *nereidv1.ModelValue
	passing  bool
	failures int       // of this content, one after another
	retryAt  time.Time // if passing
}

// NewRejections remembers nothing yet. The pause after the first failure is first, and no
// pause is longer than longest.
func NewRejections(first, longest time.Duration) *Rejections {
	return &Rejections{first: first, longest: max(first, longest), byKey: make(map[string]rejection)}
}

// Add records that a value failed, for a cause that may pass or one of its content, and returns
// the pause until it may be loaded again; 0 if it may not. Adding the same value again changes nothing.
func (r *Rejections) Add(key string, v *nereidv1.ModelValue, passing bool, now time.Time) time.Duration {
	last := r.byKey[key]
	if last.value == nil || !sameVersions(last.value, v, (*nereidv1.ModelVersion).GetGeneration) {
		next := rejection{value: v, passing: passing, failures: 1}
		if passing && last.passing && proto.Equal(last.value.GetConfig(), v.GetConfig()) && sameVersions(last.value, v, (*nereidv1.ModelVersion).GetDigest) {
			next.failures += last.failures
		}
		pause := r.first
		for range next.failures - 1 {
			if pause = min(2*pause, r.longest); pause == r.longest {
				break
			}
		}
		next.retryAt = now.Add(pause)
		r.byKey[key] = next
		last = next
	}
	if !last.passing {
		return 0
	}
	return last.retryAt.Sub(now)
}

func sameVersions[T comparable](a, b *nereidv1.ModelValue, of func(*nereidv1.ModelVersion) T) bool {
	return slices.EqualFunc(a.GetVersions(), b.GetVersions(), func(a, b *nereidv1.ModelVersion) bool {
		return a.GetVersion() == b.GetVersion() && of(a) == of(b)
	})
}

// Remove forgets a model, whose content was loaded, or was asked for by a caller.
func (r *Rejections) Remove(key string) { delete(r.byKey, key) }

// Value is the value of a key that failed last; nil if none did.
func (r *Rejections) Value(key string) *nereidv1.ModelValue { return r.byKey[key].value }

// Passing reports whether the cause of the last failure may pass.
func (r *Rejections) Passing(key string) bool { return r.byKey[key].passing }

// Due reports whether the value that failed last may be loaded again.
func (r *Rejections) Due(key string, now time.Time) bool {
	last := r.byKey[key]
	return last.passing && !now.Before(last.retryAt)
}
