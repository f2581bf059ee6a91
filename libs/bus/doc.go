// Package bus is the control plane's store: the one adapter for NATS JetStream.
// It connects to a NATS server or embeds one, and offers typed buckets of
// values, watches over them, and leases. Tensors never travel here.
//
// # Buckets
//
//	name         kept by                    values end
//	models       registry leader            when deleted
//	assignments  registry leader            when deleted
//	pools        registry leader            when deleted
//	settings     registry leader            when deleted
//	workers      that worker                with their lease, 5 s
//	instances    that worker                when deleted; void without its lease
//	gateways     that gateway               with their lease, 5 s
//	schedulers   that scheduler             with their lease, 2 s
//	leaders      the holder of the role     with their lease, 2 s
//
// [Buckets] is the table in full. Every bucket keeps one value per key, on
// disk, and is a NATS key-value bucket, so that "nats kv watch models" shows
// it. A revision counts the writes of a whole bucket. Keys may be any bytes:
// those that NATS refuses are written as '=' and two hexadecimal digits. In
// the buckets assignments and instances a key is a worker's id and a model's
// key, with a slash between them, which NATS sees as a dot: all keys of a worker
// are "instances.w1.>".
//
// # Rules
//
// A value is read, changed and written with the revision that was read
// ([Bucket.Update]); ErrConflict means to read again. A reader that must stay
// current watches ([Bucket.Watch]) and keeps what the events say; it never polls.
// While the server is away reads and writes fail, at once where the loss is known,
// and watches are silent; afterwards watches send what changed.
//
// # Loss
//
// A bucket's revisions begin with the microseconds since 1970 at its making: a
// bucket that is made again, after the store has lost it, continues above all
// revisions before. A process that may make buckets keeps them there
// ([Bus.KeepBuckets]). A watch reports that its bucket has lost what it held
// ([EventLost]), each writer writes its values again, and only what is missing
// after a while is reported as ended. Package history recognizes a loss. A store
// that was restored from a backup is not recognized.
//
// # Leases
//
// A lease ([Bucket.Acquire]) is a key that ends by itself unless its holder
// renews it. Its epoch is the revision at which it was acquired. A holder sends
// the epoch along, and its receivers refuse a lower one than they have seen: a
// holder that was suspended may believe in its lease for a moment longer than the
// server. An attempt to renew takes a quarter of the time to live at most, and no
// lock is held meanwhile.
//
// Two facts of NATS shape the code. The time to live belongs to a message, not
// to a key: a plain write makes the key permanent, so leases are renewed by
// writes that carry it, and other writes to such buckets are refused. And with
// more than one value kept per key, the server silently raises every time to
// live to that of its deletion marks.
package bus
