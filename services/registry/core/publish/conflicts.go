package publish

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// HasResources reports whether instances of a value's model, which serves or is to,
// need resources of a rate limiter of which isPool may say the pool.
func HasResources(v *nereidv1.ModelValue, pools Pools, isPool func(pool string) bool) bool {
	return slices.ContainsFunc(contentsOf(v, pools), func(c content) bool { return isPool(c.pool) })
}

// Conflicts says, of versions that are not ready, why they cannot be loaded beside
// others of their pool: a resource is either global or each device's. What is
// ready goes before what is not, and then what was found first. Only the pools
// count that have a rate limiter.
func Conflicts(stored Models, pools Pools, limited func(pool string) bool, ready func(infer.ModelRef) bool) map[infer.ModelRef]string {
	var all []content
	for _, key := range slices.Sorted(maps.Keys(stored)) {
		for _, c := range contentsOf(stored[key].Value, pools) {
			if limited(c.pool) {
				c.ready = slices.ContainsFunc(c.versions, ready)
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b content) int {
		if a.ready != b.ready {
			return map[bool]int{true: -1, false: 1}[a.ready]
		}
		return cmp.Compare(a.versions[0].Generation, b.versions[0].Generation)
	})
	causes, known := make(map[infer.ModelRef]string), make(map[resourceName]resourceUse)
	for _, c := range all {
		cause := c.conflict(known)
		if cause == "" || c.ready {
			maps.Copy(known, c.uses())
			continue
		}
		for _, ref := range c.versions {
			causes[ref] = cause
		}
	}
	return causes
}

// content is one configuration of a model that needs resources, and its versions
// that are to be loaded or are.
type content struct {
	pool     string
	id       infer.ModelID
	config   *inference.ModelConfig
	versions []infer.ModelRef
	ready    bool // one of them is
}

// resourceName is that of a resource in a pool, resourceUse who says of what kind it is.
type (
	resourceName struct{ pool, name string }
	resourceUse  struct {
		global bool
		id     infer.ModelID
	}
)

// contentsOf are a value's configurations that need resources.
func contentsOf(v *nereidv1.ModelValue, pools Pools) (list []content) {
	if v.GetProblem() != "" {
		return nil
	}
	for _, of := range []*nereidv1.ModelContent{v.GetPrevious(), {Config: v.GetConfig(), Versions: v.GetVersions()}} {
		c := content{pool: pools.OfModel(IDOf(v), of.GetConfig()), id: IDOf(v), config: of.GetConfig()}
		for _, version := range of.GetVersions() {
			if placeable(version) {
				c.versions = append(c.versions, ref(c.id, version))
			}
		}
		if len(c.versions) > 0 && len(c.uses()) > 0 {
			list = append(list, c)
		}
	}
	return list
}

func (c content) uses() map[resourceName]resourceUse {
	uses := make(map[resourceName]resourceUse)
	for name, global := range c.resources() {
		uses[resourceName{c.pool, name}] = resourceUse{global, c.id}
	}
	return uses
}

// resources yields the names of resources, and whether they are global.
func (c content) resources() func(yield func(string, bool) bool) {
	return func(yield func(string, bool) bool) {
		for _, g := range c.config.GetInstanceGroup() {
			for _, r := range g.GetRateLimiter().GetResources() {
				if !yield(strings.ToLower(r.GetName()), r.GetGlobal()) {
					return
				}
			}
		}
	}
}

// conflict words, as Triton does, that a resource is of two kinds: by what is known of
// other models, or by the configuration itself.
func (c content) conflict(known map[resourceName]resourceUse) string {
	own := make(map[string]bool)
	for name, global := range c.resources() {
		other, found := known[resourceName{c.pool, name}]
		if before, twice := own[name]; twice && before != global {
			other, found = resourceUse{before, c.id}, true
		}
		own[name] = global
		if !found || other.global == global {
			continue
		}
		in := map[bool]infer.ModelID{global: c.id, !global: other.id}
		return fmt.Sprintf("Resource \"%s\" is present as both global and device-specific resource in the model configuration: "+
			"global in that of model '%s' and without global in that of model '%s': write the same in both, or give one another name", name, in[true], in[false])
	}
	return ""
}
