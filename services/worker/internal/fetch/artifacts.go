package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// Artifacts are files that were given through the load API, in the control
// plane's object store. A set of them is whole when its list is there: see
// package artifact of the registry, which writes both.
type Artifacts struct{ Objects *bus.Objects }

var _ Origin = Artifacts{}

// ArtifactScheme begins the URLs of sets.
const ArtifactScheme = "nats://artifacts/"

// maxList bounds the list of a set, in bytes.
const maxList = 16 << 20

// List implements [Origin].
func (a Artifacts) List(ctx context.Context, c source.Content) ([]File, error) {
	set := strings.TrimPrefix(c.ModelURL, ArtifactScheme)
	list, err := a.open(ctx, c, set)
	if err != nil {
		return nil, err
	}
	defer list.Close()
	var all []struct {
		Name string `json:"name"`
		Size int64  `json:"size"`
	}
	if err := json.NewDecoder(io.LimitReader(list, maxList)).Decode(&all); err != nil {
		return nil, unreachable(c, err)
	}
	var files []File
	for _, f := range all {
		if top, _, _ := strings.Cut(f.Name, "/"); !modelfiles.Part(top, versionName(c)) || f.Size < 0 {
			continue
		}
		files = append(files, File{
			Name: f.Name, Tag: set, Size: f.Size, Whole: true,
			Open: func(ctx context.Context, offset, _ int64) (io.ReadCloser, error) {
				return a.from(ctx, c, set+"/"+f.Name, offset)
			},
		})
	}
	return files, nil
}

// from reads an object from an offset on.
func (a Artifacts) from(ctx context.Context, c source.Content, name string, offset int64) (io.ReadCloser, error) {
	body, err := a.open(ctx, c, name)
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyN(io.Discard, body, offset); err != nil {
		return nil, errors.Join(unreachable(c, err), body.Close())
	}
	return explained{body, c}, nil
}

func (a Artifacts) open(ctx context.Context, c source.Content, name string) (io.ReadCloser, error) {
	body, err := a.Objects.Open(ctx, name)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, changed(c, "they were removed")
	}
	if err != nil {
		return nil, unreachable(c, err)
	}
	return body, nil
}

// explained gives the failures of a read a reason.
type explained struct {
	io.ReadCloser
	content source.Content
}

func (e explained) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = unreachable(e.content, err)
	}
	return n, err
}

func unreachable(c source.Content, err error) error {
	return errs.Wrap(errs.StoreUnreachable, err, "%s: the files cannot be read from the control plane's store: see the connection to NATS; it is tried again", c.URL)
}

// ByScheme takes artifacts from one origin and all others from another.
type ByScheme struct{ Artifacts, Stores Origin }

var _ Origin = ByScheme{}

// List implements [Origin].
func (o ByScheme) List(ctx context.Context, c source.Content) ([]File, error) {
	if strings.HasPrefix(c.ModelURL, ArtifactScheme) {
		return o.Artifacts.List(ctx, c)
	}
	return o.Stores.List(ctx, c)
}
