package fetch

import (
	"context"
	"io"
	"path"
	"strings"

	"github.com/nereid-serving/nereid/libs/blob"
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/modelfiles"
	"github.com/nereid-serving/nereid/services/worker/internal/source"
)

// Origin is where files are fetched from. It is safe for concurrent use.
type Origin interface {
	// List lists the files of a content, by their paths in the model's
	// directory, in an order that stays.
	List(ctx context.Context, c source.Content) ([]File, error)
}

// File is a file of a content as it was listed.
type File struct {
	// Name is its path with slashes. One that ends with a slash is a directory.
	Name string
	// Tag names what it holds, and Size is in bytes.
	Tag  string
	Size int64
	// Whole says that it is fetched by one request, since a range costs as much.
	Whole bool
	// Open reads a range of it, or fails if it is another by now.
	Open func(ctx context.Context, offset, length int64) (io.ReadCloser, error)
}

// Stores are object stores.
type Stores struct{ Stores *blob.Stores }

var _ Origin = Stores{}

// List implements [Origin].
func (s Stores) List(ctx context.Context, c source.Content) ([]File, error) {
	dir, err := s.Stores.At(ctx, c.ModelURL)
	if err != nil {
		return nil, err
	}
	objects, err := dir.List(ctx, "")
	if err != nil {
		return nil, err
	}
	var files []File
	for _, o := range objects {
		if top, _, _ := strings.Cut(o.Name, "/"); !modelfiles.Part(top, versionName(c)) {
			continue
		}
		files = append(files, File{
			Name: o.Name, Tag: o.ETag, Size: o.Size,
			Open: func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
				return dir.Open(ctx, o, offset, length)
			},
		})
	}
	if len(files) == 0 {
		return nil, changed(c, "there are none any more")
	}
	return files, nil
}

// changed says that the files are not those that the registry has read.
func changed(c source.Content, how string) error {
	return errs.New(errs.FilesChanged, "the files of %s changed since the registry read them, %s: load the model again; "+
		"under poll control the next poll does, without model control restart the server", c.URL, how)
}

// local reports whether a name stays within the directory that it is in.
func local(name string) bool {
	clean := strings.TrimSuffix(name, "/")
	return clean != "" && !path.IsAbs(clean) && path.Clean(clean) == clean && clean != ".." && !strings.HasPrefix(clean, "../") && !strings.Contains(clean, `\`)
}
