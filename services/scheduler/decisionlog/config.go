package decisionlog

import (
	"cmp"
	"encoding/json"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// The JSON of a configuration contains what the core reads of it, under the names of config.pbtxt.
type (
	configJSON struct {
		MaxBatchSize int64          `json:"max_batch_size"`
		Decoupled    bool           `json:"decoupled,omitempty"`
		Inputs       []inputJSON    `json:"input,omitempty"`
		Batching     *batchingJSON  `json:"dynamic_batching,omitempty"`
		Buckets      []int64        `json:"padding.buckets,omitempty"`
		Sequences    *sequencesJSON `json:"sequence_batching,omitempty"`
		Idempotent   bool           `json:"idempotent,omitempty"`
		Groups       []groupJSON    `json:"instance_group,omitempty"` // those that matter to a rate limiter
	}
	groupJSON struct {
		Name      string         `json:"name"`
		Priority  uint32         `json:"priority,omitempty"`
		Resources []resourceJSON `json:"resources,omitempty"`
	}
	resourceJSON struct {
		Name   string `json:"name"`
		Global bool   `json:"global,omitempty"`
		Count  uint32 `json:"count"`
	}
	inputJSON struct {
		Name     string       `json:"name"`
		Dims     tensor.Shape `json:"dims"`
		Optional bool         `json:"optional,omitempty"`
		Ragged   bool         `json:"allow_ragged_batch,omitempty"`
		Padded   []int        `json:"padding.inputs,omitempty"`
	}
	batchingJSON struct {
		PreferredSizes      []int64               `json:"preferred_batch_size,omitempty"`
		MaxQueueDelayMicros uint64                `json:"max_queue_delay_microseconds,omitempty"`
		PreserveOrdering    bool                  `json:"preserve_ordering,omitempty"`
		PriorityLevels      uint64                `json:"priority_levels,omitempty"`
		DefaultPriority     uint64                `json:"default_priority_level,omitempty"`
		DefaultPolicy       policyJSON            `json:"default_queue_policy,omitzero"`
		Policies            map[uint64]policyJSON `json:"priority_queue_policy,omitempty"`
	}
	sequencesJSON struct {
		Oldest              bool    `json:"oldest,omitempty"`
		Slots               int     `json:"max_candidate_sequences"` // also for the strategy direct
		MaxIdleMicros       uint64  `json:"max_sequence_idle_microseconds"`
		MaxQueueDelayMicros uint64  `json:"max_queue_delay_microseconds,omitempty"`
		MinSlotUtilization  float32 `json:"minimum_slot_utilization,omitempty"`
		PreferredSizes      []int64 `json:"preferred_batch_size,omitempty"`
		Iterative           bool    `json:"iterative_sequence,omitempty"`
	}
	policyJSON struct {
		Delay                bool   `json:"delay,omitempty"` // timeout_action: DELAY
		DefaultTimeoutMicros uint64 `json:"default_timeout_microseconds,omitempty"`
		AllowTimeoutOverride bool   `json:"allow_timeout_override,omitempty"`
		MaxQueueSize         uint32 `json:"max_queue_size,omitempty"`
	}
)

// config writes a configuration.
func (e *encoder) config(c *modelconfig.Config) {
	j := configJSON{MaxBatchSize: c.MaxBatchSize, Decoupled: c.Decoupled, Idempotent: c.Parameters[core.Idempotent] == "true"}
	for i := range c.Inputs {
		in := &c.Inputs[i]
		j.Inputs = append(j.Inputs, inputJSON{in.Name, in.Dims, in.Optional, in.Ragged, nil})
		if padded := c.Padding.Input(in.Name); padded != nil {
			j.Inputs[i].Padded = padded.Dims
		}
	}
	if c.Padding != nil {
		j.Buckets = c.Padding.Buckets
	}
	if b := c.Batching; b != nil {
		j.Batching = &batchingJSON{
			PreferredSizes: b.PreferredSizes, MaxQueueDelayMicros: b.MaxQueueDelayMicros, PreserveOrdering: b.PreserveOrdering,
			PriorityLevels: b.PriorityLevels, DefaultPriority: b.DefaultPriority, DefaultPolicy: policyJSON(b.DefaultPolicy),
		}
		for level, policy := range b.Policies {
			if j.Batching.Policies == nil {
				j.Batching.Policies = make(map[uint64]policyJSON, len(b.Policies))
			}
			j.Batching.Policies[level] = policyJSON(policy)
		}
	}
	if s := c.Sequences; s != nil {
		j.Sequences = &sequencesJSON{
			s.Oldest, s.Slots, s.MaxIdleMicros, s.MaxQueueDelayMicros, s.MinSlotUtilization, s.PreferredSizes, s.Iterative,
		}
	}
	for i := range c.Groups {
		if g := &c.Groups[i]; g.Priority > 1 || len(g.Resources) > 0 {
			group := groupJSON{Name: g.Name, Priority: g.Priority}
			for _, r := range g.Resources {
				group.Resources = append(group.Resources, resourceJSON(r))
			}
			j.Groups = append(j.Groups, group)
		}
	}
	text, _ := json.Marshal(&j) // cannot fail: JSON can represent all of it
	e.uint(uint64(len(text)))
	e.b = append(e.b, text...)
}

// parseConfig reads a configuration.
func parseConfig(name string, text []byte) (*modelconfig.Config, error) {
	var j configJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the configuration of model '%s' is not readable", name)
	}
	c := &modelconfig.Config{Name: name, MaxBatchSize: j.MaxBatchSize, Decoupled: j.Decoupled}
	for _, in := range j.Inputs {
		c.Inputs = append(c.Inputs, modelconfig.IO{Name: in.Name, Dims: in.Dims, Optional: in.Optional, Ragged: in.Ragged})
		if in.Padded != nil {
			c.Padding = cmp.Or(c.Padding, &modelconfig.Padding{Buckets: j.Buckets})
			c.Padding.Inputs = append(c.Padding.Inputs, modelconfig.PaddedInput{Name: in.Name, Dims: in.Padded})
		}
	}
	if b := j.Batching; b != nil {
		c.Batching = &modelconfig.DynamicBatching{
			PreferredSizes: b.PreferredSizes, MaxQueueDelayMicros: b.MaxQueueDelayMicros, PreserveOrdering: b.PreserveOrdering,
			PriorityLevels: b.PriorityLevels, DefaultPriority: b.DefaultPriority, DefaultPolicy: modelconfig.QueuePolicy(b.DefaultPolicy),
		}
		for level, policy := range b.Policies {
			if c.Batching.Policies == nil {
				c.Batching.Policies = make(map[uint64]modelconfig.QueuePolicy, len(b.Policies))
			}
			c.Batching.Policies[level] = modelconfig.QueuePolicy(policy)
		}
	}
	if s := j.Sequences; s != nil {
		c.Sequences = &modelconfig.SequenceBatching{
			Oldest: s.Oldest, Slots: s.Slots, MaxIdleMicros: s.MaxIdleMicros, MaxQueueDelayMicros: s.MaxQueueDelayMicros,
			MinSlotUtilization: s.MinSlotUtilization, PreferredSizes: s.PreferredSizes, Iterative: s.Iterative,
		}
	}
	for _, g := range j.Groups {
		group := modelconfig.InstanceGroup{Name: g.Name, Priority: g.Priority}
		for _, r := range g.Resources {
			group.Resources = append(group.Resources, modelconfig.Resource(r))
		}
		c.Groups = append(c.Groups, group)
	}
	if j.Idempotent {
		c.Parameters = map[string]string{core.Idempotent: "true"}
	}
	return c, nil
}
