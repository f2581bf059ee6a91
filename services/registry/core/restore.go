package core

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
)

// restore writes what the store has lost, before anything else is decided: then a loss is a
// change of leaders like any other. It writes the models, and what workers were assigned but
// for the fences, which say that all of it is there.
func (c *Core) restore() {
	if c.started {
		return
	}
	if len(c.lost.Models) == 0 {
		c.started = true
		return
	}
	written, assigned := 0, 0
	for _, key := range slices.Sorted(maps.Keys(c.lost.Models)) {
		if _, there := c.models.entries[Key{Name: key}]; !there {
			c.write(Write{Bucket: Models, Key: Key{Name: key}, Value: c.lost.Models[key]}, nil)
			written++
		}
	}
	var batch Batch
	for k, v := range c.lost.Assignments {
		if _, there := c.assignments.entries[k]; there || k.Name == fence {
			continue
		}
		c.placement.restored[k.Name] = true
		value := proto.CloneOf(v)
		value.LeaderEpoch = c.cfg.Epoch
		batch = append(batch, Write{Bucket: Assignments, Key: k, Value: value})
		assigned++
	}
	if len(batch) > 0 {
		slices.SortFunc(batch, byKey)
		c.write(batch, nil)
	}
	c.whenDone(func() {
		// Until the workers are back nothing goes to others in their place.
		c.started, c.placement.deadline = true, c.now.Add(c.cfg.LossGrace)
		c.touchAll()
		c.note(Warn, "the models are written again to a store that has lost them",
			field("models", len(c.lost.Models)), field("written", written), field("assignments", assigned))
		c.lost = new(Started) // its values are in the buckets now
	})
}
