// Package view turns the bucket models into what the scheduler's core
// configures and removes: one entry for each loaded content that may run.
package view

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// Loop is what the view tells.
type Loop interface {
	Configure(infer.ModelRef, *modelconfig.Config)
	Remove(infer.ModelRef)
}

// View follows the bucket. It is owned by one goroutine.
type View struct {
	loop  Loop
	known map[string]map[infer.ModelRef]bool // by model
}

// New makes an empty view.
func New(loop Loop) *View {
	return &View{loop: loop, known: make(map[string]map[infer.ModelRef]bool)}
}

// Set takes a model's value, nil if it is gone. Contents that are new in it
// are configured; contents that are gone from it are removed, which lets them
// finish what they have. The error says why a configuration cannot be used;
// then nothing changes.
func (c *View) Set(name string, v *nereidv1.ModelValue) error {
	wanted, config, err := contents(name, v)
	if err != nil {
		return err
	}
	known := c.known[name]
	for ref := range wanted {
		if !known[ref] {
			c.loop.Configure(ref, config)
		}
	}
	for ref := range known {
		if !wanted[ref] {
			c.loop.Remove(ref)
		}
	}
	c.known[name] = wanted
	if len(wanted) == 0 {
		delete(c.known, name)
	}
	return nil
}

func contents(name string, v *nereidv1.ModelValue) (map[infer.ModelRef]bool, *modelconfig.Config, error) {
	if v == nil || v.GetProblem() != "" {
		return nil, nil, nil
	}
	config, err := modelconfig.FromProto(v.GetConfig())
	if err != nil {
		return nil, nil, err
	}
	wanted := make(map[infer.ModelRef]bool)
	for _, version := range v.GetVersions() {
		if version.GetDesired() == nereidv1.DesiredState_DESIRED_STATE_SERVE && version.GetProblem() == "" {
			wanted[infer.ModelRef{Name: name, Version: version.GetVersion(), Generation: version.GetGeneration()}] = true
		}
	}
	return wanted, config, nil
}
