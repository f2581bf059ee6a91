// Package bus is the control plane's store: the one adapter for NATS JetStream.
// It connects to a NATS server or embeds one, and offers typed buckets of
// values, watches over them, and leases. Tensors never pass through it.
//
// # Buckets
//
//	name         written by                 values end
//	models       leading registry           when deleted
//	assignments  leading registry           when deleted
//	pools        leading registry           when deleted
//	settings     leading registry           when deleted
//	policy       leading registry           when deleted
//	quotas       gateways, by revision      when the limits are whole again
//	costs        scheduler of the pool      when deleted
//	workers      that worker                with their lease, 5 s
//	instances    that worker                when deleted; void without its lease
//	gateways     that gateway               with their lease, 5 s
//	schedulers   that scheduler             with their lease, 2 s
//	registries   that registry              with their lease, 5 s
//	leaders      the holder of the role     with their lease, 2 s
//	attached     scheduler of the pool      when deleted
//
// [Buckets] is the table in full. Every bucket stores one value per key, on
// disk, and is a NATS key-value bucket, so that "nats kv watch models" shows
// it. A revision counts the writes of a whole bucket. Keys may be any bytes:
// those that NATS refuses are written as '=' and two hexadecimal digits. In
// the buckets assignments and instances a key is a worker's id and a model's
// key, with a slash between them, which NATS sees as a dot: all keys of a worker
// are "instances.w1.>".
//
// # Rules
//
// To change a value, read it and write it with the revision that was read
// ([Bucket.Update]); ErrConflict means to read again. A reader that must stay
// current watches ([Bucket.Watch]) and applies the events; it never polls. While
// the server is unavailable, reads and writes fail, at once if the loss is known,
// and watches are silent; afterwards watches send the changes.
//
// # Loss
//
// A bucket's revisions begin with the microseconds since 1970 at its creation, so
// a bucket that is created again after a loss continues above all earlier
// revisions. A process that may create buckets maintains them
// ([Bus.KeepBuckets]). A watch reports that its bucket has lost its contents
// ([EventLost]), each writer writes its values again, and keys that are still
// missing after a while are reported as ended. Package history detects a loss. A
// store that was restored from a backup is not recognized.
//
// # Leases
//
// A lease ([Bucket.Acquire]) is a key that expires unless its holder renews it.
// Its epoch is the revision at which it was acquired. A holder sends the epoch
// with its messages, and receivers refuse a lower epoch than they have seen: a
// holder that was suspended may believe in its lease for a moment longer than the
// server. An attempt to renew takes at most a quarter of the time to live, and no
// lock is held meanwhile.
//
// Two facts of NATS shape the code. The time to live belongs to a message, not
// to a key: a plain write makes the key permanent, so leases are renewed by
// writes that carry it, and other writes to such buckets are refused. And with
// more than one value stored per key, the server silently raises every time to
// live to that of its deletion markers.
package bus
