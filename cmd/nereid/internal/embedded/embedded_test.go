package embedded

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/lifecycle"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// patience bounds what a test waits for; no test measures it.
const patience = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unled is a server without its registry, whose part the test plays: it
// writes the buckets by hand.
type unled struct {
	t           *testing.T
	http        string
	models      *bus.Bucket[*nereidv1.ModelValue]
	assignments *bus.Bucket[*nereidv1.AssignmentValue]
}

func startUnled(t *testing.T) *unled {
	t.Helper()
	c := Default()
	c.Registry.Repositories = []string{t.TempDir()}
	c.Gateway.HTTPAddress, c.Gateway.HTTPPort = "127.0.0.1", 0
	c.Gateway.AllowGRPC.On, c.Admin.AllowMetrics.On = false, false
	core, logs := observer.New(zap.InfoLevel)
	server, err := New(c, zap.New(core), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := bus.Open(t.Context(), bus.Config{Lease: patience})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	parts, err := server.parts(b)
	if err != nil {
		t.Fatal(err)
	}
	parts = slices.DeleteFunc(parts, func(p lifecycle.Part) bool { return p.Name == "registry" })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- lifecycle.Run(ctx, parts...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	u := &unled{
		t: t, models: bucket[*nereidv1.ModelValue](t, b, bus.Models),
		assignments: bucket[*nereidv1.AssignmentValue](t, b, bus.Assignments),
	}
	u.eventually("the server to listen", func() bool {
		for _, e := range logs.FilterMessage("listening").All() {
			u.http, _ = e.ContextMap()["http"].(string)
		}
		return u.http != ""
	})
	return u
}

func bucket[T nereidv1.Value](t *testing.T, b *bus.Bus, name string) *bus.Bucket[T] {
	t.Helper()
	k, err := bus.NewBucket(b, name, bus.Values[T]())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// eventually waits for what the services agree on by themselves.
func (u *unled) eventually(what string, holds func() bool) {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !holds() {
		select {
		case <-poll.C:
		case <-ctx.Done():
			u.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// set writes the model with a maximum batch size, as a content of its own,
// and assigns it to the worker.
func (u *unled) set(generation uint64, rows int32) {
	u.t.Helper()
	url := "file://" + filepath.ToSlash(u.t.TempDir())
	revision, err := u.models.Put(u.t.Context(), "m", &nereidv1.ModelValue{
		Schema: nereidv1.Schema, Name: "m", Url: url,
		Config: &inference.ModelConfig{
			Name: "m", Backend: "echo", MaxBatchSize: rows,
			Input:  []*inference.ModelInput{{Name: "x", DataType: inference.DataType_TYPE_INT32, Dims: []int64{1}}},
			Output: []*inference.ModelOutput{{Name: "y", DataType: inference.DataType_TYPE_INT32, Dims: []int64{1}}},
		},
		Versions: []*nereidv1.ModelVersion{{
			Version: 1, Generation: generation, Url: url, Desired: nereidv1.DesiredState_DESIRED_STATE_SERVE,
		}},
	})
	if err != nil {
		u.t.Fatal(err)
	}
	u.assign(revision, &nereidv1.AssignedVersion{
		Model:  &nereidv1.ModelRef{Name: "m", Version: 1, Generation: generation},
		Groups: []*nereidv1.AssignedGroup{{Name: "m", Kind: nereidv1.DeviceKind_DEVICE_KIND_CPU, Count: 2}},
	})
}

func (u *unled) assign(revision uint64, versions ...*nereidv1.AssignedVersion) {
	u.t.Helper()
	id := Default().Worker.ID
	v := &nereidv1.AssignmentValue{Schema: nereidv1.Schema, WorkerId: id, ModelsRevision: revision, LeaderEpoch: 1}
	head := proto.CloneOf(v)
	v.Versions = versions
	for key, value := range map[string]*nereidv1.AssignmentValue{"m": v, "": head} {
		if _, err := u.assignments.Put(u.t.Context(), bus.OwnedKey(id, key), value); err != nil {
			u.t.Fatal(err)
		}
	}
}

func (u *unled) infer(rows string) (int, string) {
	u.t.Helper()
	body := `{"inputs":[{"name":"x","datatype":"INT32","shape":[` + rows + `]}]}`
	request, err := http.NewRequestWithContext(u.t.Context(), http.MethodPost, "http://"+u.http+"/v2/models/m/infer", strings.NewReader(body))
	if err != nil {
		u.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		u.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

const (
	oneRow  = `1,1],"data":[7`
	twoRows = `2,1],"data":[7,8`
)

// TestServicesActOnTheBucketsAlone edits the buckets and nothing else, and
// what is served changes: worker, scheduler and gateway learn of models by no
// other path.
func TestServicesActOnTheBucketsAlone(t *testing.T) {
	u := startUnled(t)
	if status, text := u.infer(oneRow); status != http.StatusNotFound {
		t.Fatalf("before the buckets name a model: %d %s", status, text)
	}

	u.set(1, 1)
	u.eventually("the model to serve", func() bool { status, _ := u.infer(oneRow); return status == http.StatusOK })
	if status, text := u.infer(twoRows); status != http.StatusBadRequest || !strings.Contains(text, "batch-size must be <= 1") {
		t.Fatalf("two rows for a maximum of one: %d %s", status, text)
	}

	// An edit: the old content serves on until the new one does.
	u.set(2, 4)
	u.eventually("the new configuration to serve", func() bool {
		if status, text := u.infer(oneRow); status != http.StatusOK {
			t.Fatalf("during the swap: %d %s", status, text)
		}
		status, _ := u.infer(twoRows)
		return status == http.StatusOK
	})

	// The worker loses its assignment: known, but not ready.
	u.assign(3)
	u.eventually("the model to be out of service", func() bool {
		status, _ := u.infer(oneRow)
		return status != http.StatusOK
	})
	if err := u.models.Delete(t.Context(), "m", 0); err != nil {
		t.Fatal(err)
	}
	u.eventually("the model to be unknown", func() bool {
		status, text := u.infer(oneRow)
		return status == http.StatusNotFound && strings.Contains(text, "is not found")
	})
}
