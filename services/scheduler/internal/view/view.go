// Package view converts the bucket models to the models that the scheduler's core configures and removes: one entry
// for each loaded content that may run.
package view

import (
	"cmp"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Loop receives the view's changes.
type Loop interface {
	Configure(infer.ModelRef, *modelconfig.Config)
	Remove(infer.ModelRef)
}

// View follows the bucket. It is owned by one goroutine.
type View struct {
	loop  Loop
	pool  string
	known map[string]map[infer.ModelRef]bool // by the model's key
}

// New returns an empty view of the models of a pool.
func New(loop Loop, pool string) *View {
	return &View{loop: loop, pool: pool, known: make(map[string]map[infer.ModelRef]bool)}
}

// Set applies the value of a model's key; nil means that the model is gone. A model of another pool counts as gone.
// Set configures the contents that are new in the value and removes those that are no longer in it, which lets them
// finish their requests. The error says why a configuration cannot be used; then nothing changes.
func (c *View) Set(key string, v *nereidv1.ModelValue) error {
	if cmp.Or(v.GetPool(), infer.DefaultPool) != c.pool {
		v = nil
	}
	wanted, err := contents(infer.ParseModelID(key), v)
	if err != nil {
		return err
	}
	known := c.known[key]
	now := make(map[infer.ModelRef]bool, len(wanted))
	for ref, config := range wanted {
		now[ref] = true
		if !known[ref] {
			c.loop.Configure(ref, config)
		}
	}
	for ref := range known {
		if !now[ref] {
			c.loop.Remove(ref)
		}
	}
	c.known[key] = now
	if len(now) == 0 {
		delete(c.known, key)
	}
	return nil
}

// contents returns what should serve, and what serves until that is ready.
func contents(id infer.ModelID, v *nereidv1.ModelValue) (map[infer.ModelRef]*modelconfig.Config, error) {
	if v == nil || v.GetProblem() != "" {
		return nil, nil
	}
	wanted := make(map[infer.ModelRef]*modelconfig.Config)
	if err := add(wanted, id, v.GetPrevious().GetConfig(), v.GetPrevious().GetVersions()); err != nil {
		return nil, err
	}
	return wanted, add(wanted, id, v.GetConfig(), v.GetVersions())
}

func add(to map[infer.ModelRef]*modelconfig.Config, id infer.ModelID, config *inference.ModelConfig, versions []*nereidv1.ModelVersion) error {
	if len(versions) == 0 {
		return nil // not loaded
	}
	c, err := modelconfig.FromProto(config)
	if err != nil {
		return err
	}
	for _, v := range versions {
		if v.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE && v.GetProblem() == "" {
			to[id.Version(v.GetVersion(), v.GetGeneration())] = c
		}
	}
	return nil
}
