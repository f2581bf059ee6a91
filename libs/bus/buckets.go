package bus

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The names of the buckets.
const (
	Models      = "models"
	Assignments = "assignments"
	Workers     = "workers"
	Pools       = "pools"
	Gateways    = "gateways"
	Schedulers  = "schedulers"
	Settings    = "settings"
	Leaders     = "leaders"
)

// Spec is one row of the bucket table.
type Spec struct {
	// Name is the bucket's name.
	Name string
	// Lease is how long a lease of this bucket lives without renewal, in whole
	// seconds. Zero: the bucket holds values that stay until they are deleted.
	Lease time.Duration
	// MaxValue bounds a value as stored, in bytes. All are below the 1 MiB that
	// a NATS server takes by default.
	MaxValue int
	// Lists says that a value lists models, and is compressed if it is large.
	Lists bool
	// Holds says what the values are.
	Holds string
}

// Buckets returns the bucket table. See the
// package comment for what all buckets have in common.
func Buckets() []Spec {
	return []Spec{
		{Models, 0, 960 << 10, false, "configuration as served, versions and desired state, by model"},
		{Assignments, 0, 768 << 10, true, "what a worker should run, by worker id"},
		{Pools, 0, 256 << 10, false, "workers and models, by pool"},
		{Settings, 0, 256 << 10, false, "settings that every replica must know, by name"},
		{Workers, 5 * time.Second, 768 << 10, true, "a worker's devices and instances, by worker id"},
		{Gateways, 5 * time.Second, 256 << 10, false, "a gateway's address and applied revision, by id"},
		{Schedulers, 2 * time.Second, 256 << 10, false, "a scheduler's address, load and applied revision, by id"},
		{Leaders, 2 * time.Second, 16 << 10, false, "the holder of a role, by role"},
	}
}

// markerTTL is how long the server keeps the mark of a deleted or expired
// value. A watch that was away for longer compares keys in any case.
const markerTTL = 10 * time.Minute

// headerRoom is what a value's headers may take of the message's size.
const headerRoom = 1 << 10

// EnsureBuckets makes every bucket of the table, or brings an existing one to
// its row. Several processes may do so at once. Errors have the reason
// state_unavailable.
func (b *Bus) EnsureBuckets(ctx context.Context) error {
	for _, spec := range Buckets() {
		if err := b.ensure(ctx, b.streamConfig(spec)); err != nil {
			return unavailable(err, "cannot make the bucket %q: allow this account to make streams, or check replicas (%d) against the size of the NATS cluster", spec.Name, b.replicas)
		}
	}
	return nil
}

func (b *Bus) ensure(ctx context.Context, cfg jetstream.StreamConfig) error {
	stream, err := b.js.Stream(ctx, cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = b.js.CreateStream(ctx, cfg)
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		stream, err = b.js.Stream(ctx, cfg.Name) // another process was faster
	}
	if err != nil {
		return err
	}
	// How writes reach the disk is settled when a stream is made.
	cfg.PersistMode = stream.CachedInfo().Config.PersistMode
	_, err = b.js.UpdateStream(ctx, cfg)
	return err
}

// streamConfig is the stream behind a bucket. It is a NATS key-value bucket in
// every respect, so that the nats command line tool shows it, and is made as a
// stream only because the key-value API cannot set PersistMode.
func (b *Bus) streamConfig(spec Spec) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{
		Name:        streamName(spec.Name),
		Description: spec.Holds,
		Subjects:    []string{subjectPrefix(spec.Name) + ">"},
		// One value per key. With more, the server silently raises every
		// lease's time to live to SubjectDeleteMarkerTTL.
		MaxMsgsPerSubject:      1,
		MaxMsgs:                -1,
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
	}
	if spec.Lease > 0 && b.server != nil {
		cfg.PersistMode = jetstream.AsyncPersistMode
	}
	return cfg
}

func streamName(bucket string) string    { return "KV_" + bucket }
func subjectPrefix(bucket string) string { return "$KV." + bucket + "." }

func findSpec(name string) (Spec, bool) {
	table := Buckets()
	i := slices.IndexFunc(table, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		return Spec{}, false
	}
	return table[i], true
}
