package modelconfig

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/nereid-serving/nereid/libs/diagnostics"
	"github.com/nereid-serving/nereid/libs/infer"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// The parameters that place a model. Triton ignores them.
const (
	ReplicasKey  = placementPrefix + "replicas"
	StrategyKey  = placementPrefix + "strategy"
	PoolKey      = placementPrefix + "pool"
	LabelsKey    = placementPrefix + "labels"
	strategyPack = "pack"

	placementPrefix = "placement."
)

// maxReplicas bounds numbers that are mistakes.
const maxReplicas = 4096

// Placement says on which workers a model runs.
type Placement struct {
	// Replicas is on how many workers; 0 is on every one that fits.
	Replicas int
	// Pack prefers workers with much load, so that others stay free; otherwise workers with
	// little load are preferred.
	Pack bool
	// Pool names the pool; empty leaves it to the registry's settings.
	Pool string
	// Labels are those that workers must carry.
	Labels map[string]string
}

// IsPlacement reports whether a parameter is one of placement, whose changes reload nothing.
func IsPlacement(parameter string) bool { return strings.HasPrefix(parameter, placementPrefix) }

// PlacementOf reads the parameters of a valid configuration.
func PlacementOf(c *inference.ModelConfig) Placement {
	text := func(key string) string { return c.GetParameters()[key].GetStringValue() }
	p := Placement{Pack: text(StrategyKey) == strategyPack, Pool: text(PoolKey)}
	if n, err := strconv.Atoi(text(ReplicasKey)); err == nil {
		p.Replicas = n
	}
	p.Labels, _ = ParseLabels(text(LabelsKey))
	return p
}

// ParseLabels reads key=value,key=value and reports whether it is that.
func ParseLabels(text string) (map[string]string, bool) {
	if text == "" {
		return nil, true
	}
	labels := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || key == "" || value == "" {
			return nil, false
		}
		labels[key] = value
	}
	return labels, true
}

func (r *report) validatePlacement(c *inference.ModelConfig) {
	for _, key := range sortedKeys(c.GetParameters()) {
		if IsPlacement(key) {
			r.validatePlacementParameter(key, c.GetParameters()[key].GetStringValue())
		}
	}
}

func (r *report) validatePlacementParameter(key, value string) {
	at := entry("parameters", key)
	switch key {
	case ReplicasKey:
		if n, err := strconv.Atoi(value); err != nil || n < 1 || n > maxReplicas {
			r.invalid(at, "give a number from 1, or remove it for every worker that fits", "parameter %s must be a number of workers, got %q", key, value)
		}
	case StrategyKey:
		if value != "spread" && value != strategyPack {
			r.invalid(at, "use spread for workers that run little, pack for workers that run much", "parameter %s must be spread or pack, got %q", key, value)
		}
	case PoolKey:
		if !infer.ValidPool(value) {
			r.invalid(at, "give the name of a pool, or remove it", "parameter %s must be the name of a pool, got %q", key, value)
		}
	case LabelsKey:
		if _, ok := ParseLabels(value); !ok || value == "" {
			r.invalid(at, "write key=value, several separated by commas", "parameter %s must be labels of workers, got %q", key, value)
		}
	default:
		r.invalid(at, "use "+nearestOf(key, []string{ReplicasKey, StrategyKey, PoolKey, LabelsKey}), "parameter %s is none of placement", key)
	}
}

func nearestOf(key string, keys []string) string {
	return slices.MinFunc(keys, func(a, b string) int {
		return cmp.Compare(diagnostics.Distance(key, a), diagnostics.Distance(key, b))
	})
}
