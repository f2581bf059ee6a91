package blob_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/nereid-serving/nereid/libs/blob"
)

func ExampleParse() {
	at, err := blob.Parse("s3://127.0.0.1:9000/models/production/")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(at.Endpoint, at.Bucket, at.Prefix)
	fmt.Println(at)
	// Output:
	// http://127.0.0.1:9000 models production
	// s3://127.0.0.1:9000/models/production
}

// A directory stands in for a bucket here.
func ExampleDir_Open() {
	root, err := os.MkdirTemp("", "models-")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	if err := os.WriteFile(filepath.Join(root, "weights"), []byte("0123456789"), 0o600); err != nil {
		log.Print(err)
		return
	}

	ctx := context.Background()
	dir, err := blob.New(blob.Options{}).At(ctx, "file://"+root)
	if err != nil {
		log.Print(err)
		return
	}
	objects, err := dir.List(ctx, "")
	if err != nil {
		log.Print(err)
		return
	}
	for _, o := range objects {
		body, err := dir.Open(ctx, o, 3, 4) // fails if the object is another by now
		if err != nil {
			log.Print(err)
			return
		}
		data, err := io.ReadAll(body)
		body.Close()
		fmt.Println(o.Name, o.Size, string(data), err)
	}
	// Output: weights 10 3456 <nil>
}
