package modelconfig_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nereid-serving/nereid/libs/modelconfig"
)

// The last value of each range is taken, and the next one refused.
func TestLimitsAreInclusive(t *testing.T) {
	const (
		priorities = "max_batch_size: 2 dynamic_batching { priority_levels: %d default_priority_level: 1 }"
		first      = "max_batch_size: 2 dynamic_batching { priority_levels: 3 default_priority_level: %d }"
		policies   = "max_batch_size: 2 dynamic_batching { priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: %d value { } } }"
		ordered    = "max_batch_size: 2 dynamic_batching { preserve_ordering: true priority_levels: %d default_priority_level: 1 }"
		replicas   = `parameters { key: "placement.replicas" value { string_value: "%d" } }`
		groups     = "instance_group { count: 1023 kind: KIND_CPU } instance_group { count: %d kind: KIND_CPU }"
	)
	for _, tt := range []struct {
		text  string
		value any
		taken bool
	}{
		{priorities, 1024, true},
		{first, 3, true},
		{first, 4, false},
		{first, 0, false},
		{policies, 1, true},
		{policies, 3, true},
		{policies, 4, false},
		{policies, 0, false},
		{ordered, 1, true},
		{ordered, 2, false},
		{replicas, 1, true},
		{replicas, 4096, true},
		{replicas, 4097, false},
		{groups, 1, true},
		{groups, 2, false},
		{"instance_group { count: %d kind: KIND_CPU }", 1024, true},
		{"instance_group { count: %d kind: KIND_CPU }", 1025, false},
		{"version_policy { specific { versions: %d } }", 0, true},
		{"version_policy { specific { versions: %d } }", -1, false},
	} {
		text := fmt.Sprintf(tt.text, tt.value)
		_, err := modelconfig.Load([]byte(placed+text), modelconfig.Directory{Name: "m"})
		if (err == nil) != tt.taken {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A policy of one level delays as the default one does: both are refused where
// the order is kept.
func TestOrderIsNotKeptWithDelays(t *testing.T) {
	const delay = "{ timeout_action: DELAY }"
	for text, refused := range map[string]bool{
		"":                              false,
		"default_queue_policy " + delay: true,
		"default_queue_policy { }":      false,
		"priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 value " + delay + " }":              true,
		"priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 value { timeout_action: REJECT } }": false,
	} {
		config := placed + "max_batch_size: 2 dynamic_batching { preserve_ordering: true " + text + " }"
		if _, err := modelconfig.Load([]byte(config), modelconfig.Directory{Name: "m"}); (err != nil) != refused {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A batcher without preferred sizes prefers the largest batch.
func TestTheLargestBatchIsPreferred(t *testing.T) {
	for size, want := range map[int]string{1: "[1]", 8: "[8]"} {
		c, err := modelconfig.Load([]byte(fmt.Sprintf("%s max_batch_size: %d dynamic_batching { }", placed, size)), modelconfig.Directory{Name: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.GetDynamicBatching().GetPreferredBatchSize()); got != want {
			t.Errorf("of at most %d: %s, want %s", size, got, want)
		}
	}
}

func TestLabelsAreBounded(t *testing.T) {
	text := strings.Repeat("a", modelconfig.MaxLabels)
	if labels, err := modelconfig.ReadLabels(strings.NewReader(text)); err != nil || len(labels) != 1 {
		t.Errorf("%d labels, %v", len(labels), err)
	}
	if _, err := modelconfig.ReadLabels(strings.NewReader(text + "a")); err == nil {
		t.Error("a byte more is taken")
	}
}
