package modelconfig

import (
	"fmt"
	"strconv"

	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// MaxPriorityQueues bounds the queues of one model. Up to so many priority levels have one
// each; of more, those with a queue policy of their own have, which are at most
// maxLevelPolicies.
const (
	MaxPriorityQueues = 1024
	maxLevelPolicies  = 256
)

func (r *report) validateBatching(c *inference.ModelConfig) {
	b := c.GetDynamicBatching()
	if b == nil {
		return
	}
	for i, size := range b.GetPreferredBatchSize() {
		r.validatePreferred(index("dynamic_batching.preferred_batch_size", i), "dynamic batching preferred size", size, c.GetMaxBatchSize())
	}
	r.validatePriorities(b)
	r.validateOrdering(b)
}

// validatePriorities checks levels that are switched on. Without levels the
// other priority settings have no meaning and are let pass, as in Triton.
func (r *report) validatePriorities(b *inference.ModelDynamicBatching) {
	r.validatePolicy("dynamic_batching.default_queue_policy", b.GetDefaultQueuePolicy())
	levels, level := b.GetPriorityLevels(), b.GetDefaultPriorityLevel()
	if levels == 0 {
		return
	}
	if n := len(b.GetPriorityQueuePolicy()); levels > MaxPriorityQueues && n > maxLevelPolicies {
		r.invalid("dynamic_batching.priority_queue_policy", fmt.Sprintf("use at most %d priority levels, or fewer policies", MaxPriorityQueues),
			"dynamic batching has %d priority levels and %d queue policies, more than the %d that are allowed", levels, n, maxLevelPolicies)
	}
	if level < 1 || level > levels {
		r.invalid("dynamic_batching.default_priority_level", "1 is the most urgent level",
			"default priority level must be in range [1, %d]", levels)
	}
	for _, key := range sortedKeys(b.GetPriorityQueuePolicy()) {
		at := entry("dynamic_batching.priority_queue_policy", strconv.FormatUint(key, 10))
		if key < 1 || key > levels {
			r.invalid(at, "give each key one of the levels",
				"priority queue policy must have priority level in range [1, %d], got %d", levels, key)
		}
		r.validatePolicy(at, b.GetPriorityQueuePolicy()[key])
	}
}

func (r *report) validatePolicy(at string, p *inference.ModelQueuePolicy) {
	if _, known := inference.ModelQueuePolicy_TimeoutAction_name[int32(p.GetTimeoutAction())]; !known {
		r.invalid(at+".timeout_action", "use REJECT or DELAY", "queue policy has unknown timeout action %d", int32(p.GetTimeoutAction()))
	}
}

func (r *report) validateOrdering(b *inference.ModelDynamicBatching) {
	if !b.GetPreserveOrdering() {
		return
	}
	if b.GetPriorityLevels() > 1 {
		r.invalid("dynamic_batching.preserve_ordering", "remove it or priority_levels", "Only one priority level is allowed when 'preserve_ordering' is true")
	}
	delays := b.GetDefaultQueuePolicy().GetTimeoutAction() == inference.ModelQueuePolicy_DELAY
	for _, p := range b.GetPriorityQueuePolicy() {
		delays = delays || p.GetTimeoutAction() == inference.ModelQueuePolicy_DELAY
	}
	if delays {
		r.invalid("dynamic_batching.preserve_ordering", "remove it, or use timeout_action: REJECT", "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true")
	}
}
