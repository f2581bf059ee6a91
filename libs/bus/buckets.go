package bus

import (
	"cmp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The names of the buckets.
const (
	Models      = "models"
	Assignments = "assignments"
	Workers     = "workers"
	Instances   = "instances"
	Pools       = "pools"
	Gateways    = "gateways"
	Schedulers  = "schedulers"
	Settings    = "settings"
	Registries  = "registries"
	Leaders     = "leaders"
	Attached    = "attached"
	Policies    = "policy"
	Quotas      = "quotas"
	Costs       = "costs"
)

// CurrentPolicy is the key of the policy of all gateways, in the bucket policy.
const CurrentPolicy = "current"

// LogSetting is the key in the bucket [Settings] for log settings that differ from the
// processes' flags.
const LogSetting = "log"

// Spec is one row of the bucket table.
type Spec struct {
	// Name is the bucket's name.
	Name string
	// Lease is how long a lease of this bucket lives without renewal, in whole seconds. Zero
	// means that values stay until they are deleted.
	Lease time.Duration
	// MaxValue bounds a value as stored, in bytes. All are below the 1 MiB that
	// a NATS server takes by default.
	MaxValue int
	// MaxKeys limits the number of keys, including those that ended in the last minutes; 0 is
	// no limit. Beyond it new keys are refused.
	MaxKeys int64
	// KeyedByOwner says that keys are those of [OwnedKey]: an owner and a name.
	KeyedByOwner bool
	// Ephemeral says that values are meaningless once the embedded server has stopped, so that
	// it need not sync each write to disk.
	Ephemeral bool
	// Persistent says that one writer restores the bucket after a loss, and marks
	// the end: see [Bucket.MarkSynced].
	Persistent bool
	// Description names the values.
	Description string
}

// Buckets returns the bucket table. See the package comment for what all buckets
// have in common.
func Buckets() []Spec {
	return []Spec{
		{Name: Models, Persistent: true, MaxValue: 960 << 10, Description: "configuration as served, versions and desired state, by model"},
		{Name: Assignments, KeyedByOwner: true, Persistent: true, MaxValue: 256 << 10, Description: "what a worker should run of a model, by worker id and model"},
		{Name: Pools, MaxValue: 256 << 10, Description: "workers and models, by pool"},
		{Name: Settings, MaxValue: 256 << 10, Description: "settings that every replica must know, by name"},
		{Name: Policies, MaxValue: 960 << 10, Description: "the policy of all gateways, as current"},
		{Name: Quotas, Ephemeral: true, MaxValue: 16 << 10, MaxKeys: 200_000, Description: "what is left of a tenant's limits until they are whole again, by tenant"},
		{Name: Costs, MaxValue: 256 << 10, Description: "what executions have taken, by model"},
		{Name: Workers, Lease: 5 * time.Second, Ephemeral: true, MaxValue: 256 << 10, Description: "a worker's device, memory and applied revisions, by worker id"},
		{Name: Instances, KeyedByOwner: true, Ephemeral: true, MaxValue: 256 << 10, Description: "what a worker runs of a model, by worker id and model"},
		{Name: Gateways, Lease: 5 * time.Second, Ephemeral: true, MaxValue: 256 << 10, Description: "a gateway's address and applied revisions, by id"},
		{Name: Schedulers, Lease: 2 * time.Second, Ephemeral: true, MaxValue: 256 << 10, Description: "a scheduler's address, load and applied revision, by id"},
		{Name: Registries, Lease: 5 * time.Second, Ephemeral: true, MaxValue: 256 << 10, Description: "a registry's address and readiness, by id"},
		{Name: Leaders, Lease: 2 * time.Second, Ephemeral: true, MaxValue: 16 << 10, Description: "the holder of a role, by role"},
		{Name: Attached, Ephemeral: true, MaxValue: 256 << 10, Description: "workers that may have got batches, by pool"},
	}
}

// markerTTL is how long the server keeps the marker of a deleted or expired
// value. A watch that was away for longer compares keys in any case.
const markerTTL = 10 * time.Minute

// headerRoom is what a value's headers may take of the message's size.
const headerRoom = 1 << 10

// streamConfig is the stream behind a bucket. It is a NATS key-value bucket in
// every respect, so that the nats command line tool shows it, and is made as a
// stream only because the key-value API sets neither PersistMode nor the
// revision that it begins with.
func (b *Bus) streamConfig(spec Spec, first uint64) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name:        StreamName(spec.Name),
		Description: spec.Description,
		Subjects:    []string{SubjectPrefix(spec.Name) + ">"},
		// One value per key. With more, the server silently raises every
		// lease's time to live to SubjectDeleteMarkerTTL.
		MaxMsgsPerSubject:      1,
		MaxMsgs:                cmp.Or(spec.MaxKeys, -1),
		MaxBytes:               -1,
		MaxConsumers:           -1,
		MaxMsgSize:             int32(spec.MaxValue + headerRoom),
		Storage:                jetstream.FileStorage,
		Replicas:               b.replicas,
		Discard:                jetstream.DiscardNew,
		DenyDelete:             true,
		AllowRollup:            true,
		AllowDirect:            true,
		AllowMsgTTL:            true,
		SubjectDeleteMarkerTTL: markerTTL,
		FirstSeq:               first,
	}
	if spec.Ephemeral && b.server != nil {
		cfg.PersistMode = jetstream.AsyncPersistMode
	}
	return cfg
}

// StreamName is the name of a bucket's JetStream stream.
func StreamName(bucket string) string { return "KV_" + bucket }

// SubjectPrefix is the prefix of the subjects of a bucket's keys.
func SubjectPrefix(bucket string) string { return "$KV." + bucket + "." }

// LeaseOf is how long a lease on a key of a bucket lives without being renewed; 0 if the bucket
// has no leases.
func LeaseOf(bucket string) time.Duration {
	spec, _ := findSpec(bucket)
	return spec.Lease
}

func findSpec(name string) (Spec, bool) {
	table := Buckets()
	i := slices.IndexFunc(table, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		return Spec{}, false
	}
	return table[i], true
}
