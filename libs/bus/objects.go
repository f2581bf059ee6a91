package bus

import (
	"context"
	"errors"
	"io"

	"github.com/nats-io/nats.go/jetstream"
)

// Artifacts is the object store of files from the load API. The leading registry writes it,
// workers read it.
const Artifacts = "artifacts"

const (
	// ArtifactsStream is the stream behind it.
	ArtifactsStream = "OBJ_" + Artifacts
	// ArtifactsSubjects are the subjects of its objects.
	ArtifactsSubjects = "$O." + Artifacts + ".>"
	// MaxArtifacts is its size limit in bytes. A writer checks the remaining space first.
	MaxArtifacts = 1 << 30
)

// Objects is access to the object store. It is safe for concurrent use. Errors
// other than [ErrNotFound] have the reason state_unavailable.
type Objects struct{ bus *Bus }

// Objects returns access to the object store without calling the server.
func (b *Bus) Objects() *Objects { return &Objects{b} }

// Put writes an object, and replaces one of that name. The first write makes the
// store.
func (o *Objects) Put(ctx context.Context, name string, data io.Reader) error {
	store, err := o.bus.js.ObjectStore(ctx, Artifacts)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		store, err = o.bus.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{
			Bucket: Artifacts, Description: "files given through the load API, by their content",
			MaxBytes: MaxArtifacts, Storage: jetstream.FileStorage, Replicas: o.bus.replicas,
		})
	}
	if err != nil {
		return unavailable(err, "cannot open the object store %q: allow this account to make streams of %d bytes", Artifacts, MaxArtifacts)
	}
	_, err = store.Put(ctx, jetstream.ObjectMeta{Name: name}, data)
	if err != nil {
		return unavailable(err, "cannot write %q to the object store %q", name, Artifacts)
	}
	return nil
}

// Open reads an object from its beginning. The reader fails if the content is not
// what was written.
func (o *Objects) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	store, err := o.store(ctx)
	if err != nil {
		return nil, err
	}
	object, err := store.Get(ctx, name)
	if err != nil {
		return nil, o.explain(err, name)
	}
	return object, nil
}

// List gives the sizes of all objects by their names.
func (o *Objects) List(ctx context.Context) (map[string]uint64, error) {
	store, err := o.store(ctx)
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]uint64)
	all, err := store.List(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil, o.explain(err, "")
	}
	for _, object := range all {
		sizes[object.Name] = object.Size
	}
	return sizes, nil
}

// Delete removes an object if it is there.
func (o *Objects) Delete(ctx context.Context, name string) error {
	store, err := o.store(ctx)
	if err == nil {
		err = store.Delete(ctx, name)
	}
	if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil
	}
	return o.explain(err, name)
}

func (o *Objects) store(ctx context.Context) (jetstream.ObjectStore, error) {
	store, err := o.bus.js.ObjectStore(ctx, Artifacts)
	if err != nil {
		return nil, o.explain(err, "")
	}
	return store, nil
}

func (o *Objects) explain(err error, name string) error {
	if errors.Is(err, jetstream.ErrObjectNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) {
		return ErrNotFound
	}
	return unavailable(err, "cannot read %q in the object store %q", name, Artifacts)
}
