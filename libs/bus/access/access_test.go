package access_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/bus/access"
	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 2 * time.Minute

// deployed is the NATS server as the images run it.
type deployed struct {
	url  string
	keys string
}

// start runs a server on the deployed configuration, with keys made for it.
func start(t *testing.T) deployed { return startOn(t, "nats.conf", nil) }

// startOn is start on one of the deployed configurations, in which other paths
// stand in the place of those in the images.
func startOn(t *testing.T, name string, paths *strings.Replacer) deployed {
	t.Helper()
	dir := t.TempDir()
	keys := filepath.Join(dir, "all")
	if err := access.Write(keys); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nats.conf", "nats-tls.conf"} {
		config, err := os.ReadFile(filepath.Join("../../../deploy/nats", name))
		if err != nil {
			t.Fatal(err)
		}
		if paths != nil {
			config = []byte(paths.Replace(string(config)))
		}
		if err := os.WriteFile(filepath.Join(dir, name), config, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(keys, "server"), filepath.Join(dir, "keys")); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	opts.Host, opts.Port, opts.HTTPPort, opts.StoreDir, opts.NoSigs = "127.0.0.1", server.RANDOM_PORT, 0, t.TempDir(), true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not listen")
	}
	return deployed{url: s.ClientURL(), keys: keys}
}

// as connects with a service's credentials.
func (d deployed) as(t *testing.T, service string) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Config{URL: d.url, Name: service, Credentials: filepath.Join(d.keys, access.KeyFile(service))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// example is a key that the pattern matches.
func example(keys access.Keys) string {
	if keys.Pattern == "" {
		return "any.key"
	}
	return strings.ReplaceAll(keys.Pattern, ">", "default")
}

func TestEveryKeyHasOneWriter(t *testing.T) {
	writers := map[string][]string{}
	for _, service := range access.Services() {
		for _, keys := range service.Writes {
			name := keys.Bucket + " " + keys.Pattern
			writers[name] = append(writers[name], service.Name)
		}
	}
	for name, services := range writers {
		if len(services) != 1 {
			t.Errorf("%s is written by %v", name, services)
		}
	}
	for _, spec := range bus.Buckets() {
		owners := writers[spec.Name+" "]
		if parts := spec.Name == bus.Leaders; parts == (len(owners) == 1) {
			t.Errorf("all of bucket %s is written by %v", spec.Name, owners)
		}
	}
}

func TestEachServiceDoesItsWork(t *testing.T) {
	nats := start(t)
	registry := nats.as(t, "registry")
	if err := registry.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := registry.EnsureBuckets(t.Context()); err != nil {
		t.Fatalf("a second time: %v", err)
	}
	for _, service := range access.Services() {
		t.Run(service.Name, func(t *testing.T) {
			b := nats.as(t, service.Name)
			for _, keys := range service.Writes {
				writes(t, b, keys.Bucket, example(keys))
			}
			for _, spec := range bus.Buckets() {
				reads(t, b, spec.Name)
			}
		})
	}
}

// writes puts a value under the key, or acquires and releases its lease.
func writes(t *testing.T, b *bus.Bus, name, key string) {
	t.Helper()
	bucket, err := bus.NewBucket(b, name, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	value := &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "someone"}
	if _, err = bucket.Put(ctx, key, value); errs.Of(err) != errs.Bug {
		if err != nil {
			t.Errorf("write %s: %v", name, err)
		}
		return
	}
	lease, err := bucket.Acquire(ctx, bus.Claim[*nereidv1.LeaderValue]{
		Key:   key,
		Value: func(uint64) *nereidv1.LeaderValue { return value },
	})
	if err != nil {
		t.Errorf("acquire in %s: %v", name, err)
		return
	}
	if err := lease.Release(ctx); err != nil {
		t.Errorf("release in %s: %v", name, err)
	}
}

// reads watches the bucket until it has caught up.
func reads(t *testing.T, b *bus.Bus, name string) {
	t.Helper()
	bucket, err := bus.NewBucket(b, name, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for event := range bucket.Watch(ctx) {
		if event.Kind == bus.EventCaughtUp {
			return
		}
	}
	t.Errorf("the watch of %s does not catch up", name)
}

func TestForeignKeysAreRefused(t *testing.T) {
	d := start(t)
	registry := d.as(t, "registry")
	if err := registry.EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, service := range access.Services() {
		t.Run(service.Name, func(t *testing.T) {
			conn := d.raw(t, service.Name)
			for _, other := range access.Services() {
				if other.Name == service.Name {
					continue
				}
				for _, keys := range other.Writes {
					if slices.Contains(service.Clears, keys) {
						continue
					}
					refuses(t, conn, bus.SubjectPrefix(keys.Bucket)+example(keys))
				}
			}
			for _, spec := range bus.Buckets() {
				stream := bus.StreamName(spec.Name)
				refuses(t, conn, "$JS.API.STREAM.PURGE."+stream)
				if !service.Makes {
					refuses(t, conn, "$JS.API.STREAM.DELETE."+stream)
					refuses(t, conn, "$JS.API.STREAM.CREATE."+stream)
					refuses(t, conn, "$JS.API.STREAM.UPDATE."+stream)
				}
			}
			refuses(t, conn, "$JS.API.STREAM.CREATE.other")
			overhears(t, conn)
		})
	}
}

// raw connects with a service's key and without package bus.
func (d deployed) raw(t *testing.T, service string) *nats.Conn {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(filepath.Join(d.keys, access.KeyFile(service)))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(d.url, key, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// refuses publishes, and expects the server to say that this is not allowed.
func refuses(t *testing.T, conn *nats.Conn, subject string) {
	t.Helper()
	if err := errors.Join(conn.Publish(subject, []byte("{}")), conn.Flush()); err != nil {
		t.Fatal(err)
	}
	// The message of the server says the subject.
	if err := conn.LastError(); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
		t.Errorf("publish to %s: %v", subject, err)
	}
}

// overhears expects that what others receive cannot be subscribed to.
func overhears(t *testing.T, conn *nats.Conn) {
	t.Helper()
	for _, subject := range []string{"_INBOX.>", "$KV.>", ">"} {
		sub, err := conn.SubscribeSync(subject)
		if err := errors.Join(err, conn.Flush()); err != nil {
			t.Fatal(err)
		}
		if err := conn.LastError(); !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
			t.Errorf("subscribe to %s: %v", subject, err)
		}
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrBadSubscription) {
			t.Error(err)
		}
	}
}

func TestNobodyConnectsWithoutAKey(t *testing.T) {
	d := start(t)
	other := t.TempDir()
	if err := access.Write(other); err != nil {
		t.Fatal(err)
	}
	for name, credentials := range map[string]string{
		"no key": "", "a key of another deployment": filepath.Join(other, access.KeyFile("gateway")),
	} {
		b, err := bus.Open(t.Context(), bus.Config{URL: d.url, Credentials: credentials})
		if err == nil {
			t.Error(errors.Join(errors.New(name+" is let in"), b.Close()))
		} else if errs.Of(err) != errs.StateUnavailable || !errors.Is(err, bus.ErrCredentials) || !strings.Contains(err.Error(), "accepts these credentials") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAKeyOfAnotherServiceIsTold has a gateway with a worker's key, which tries
// to register for as long as it may.
func TestAKeyOfAnotherServiceIsTold(t *testing.T) {
	d := start(t)
	if err := d.as(t, "registry").EnsureBuckets(t.Context()); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.ErrorLevel)
	refused := make(chan struct{}, 1)
	log := zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		select {
		case refused <- struct{}{}:
		default:
		}
		return nil
	}))
	b, err := bus.Open(t.Context(), bus.Config{URL: d.url, Credentials: filepath.Join(d.keys, access.KeyFile("worker")), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		bucket, err := bus.NewBucket(b, bus.Gateways, bus.Values[*nereidv1.LeaderValue]())
		if err != nil {
			t.Error(err)
			return
		}
		value := &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "one"}
		if _, err := bucket.Acquire(ctx, bus.Claim[*nereidv1.LeaderValue]{Key: "one", Value: func(uint64) *nereidv1.LeaderValue { return value }}); err == nil {
			t.Error("another service's key was accepted")
		}
	}()
	select {
	case <-refused:
	case <-ctx.Done():
	}
	cancel()
	<-ended
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if all := logs.FilterMessageSnippet("nereid credentials").All(); len(all) == 0 {
		t.Errorf("the log does not say what to do: %v", logs.All())
	}
}

func TestKeysAreKeptAndPrivate(t *testing.T) {
	dir := t.TempDir()
	first, second := write(t, dir), write(t, dir)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("written anew (-first +second):\n%s", diff)
	}
	if want := len(access.Services()) + 1; len(first) != want {
		t.Errorf("%d files, want %d", len(first), want)
	}
	for path, content := range first {
		for _, service := range access.Services() {
			if own := path == access.KeyFile(service.Name); !own && strings.Contains(content, strings.TrimSpace(first[access.KeyFile(service.Name)])) {
				t.Errorf("%s holds the key of the %s", path, service.Name)
			}
		}
	}

	damaged := filepath.Join(dir, access.KeyFile("worker"))
	if err := os.WriteFile(damaged, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := access.Write(dir); errs.Of(err) != errs.StateUnavailable || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a damaged key: %v", err)
	}
}

// write makes the files and returns their contents by their names under dir.
func write(t *testing.T, dir string) map[string]string {
	t.Helper()
	if err := access.Write(dir); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v)", name, info.Mode(), err)
		}
		files[strings.TrimPrefix(name, dir+"/")] = string(content)
	}
	return files
}

func TestGivenFilesAreWrittenByTheRegistryAndReadByWorkers(t *testing.T) {
	nats := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	registry := nats.as(t, "registry").Objects()
	for _, name := range []string{"set", "other"} {
		if err := registry.Put(ctx, name, strings.NewReader("given")); err != nil {
			t.Fatal(err)
		}
	}
	if err := registry.Delete(ctx, "other"); err != nil {
		t.Error(err)
	}
	if all, err := registry.List(ctx); err != nil || len(all) != 1 {
		t.Errorf("the registry lists %v, %v", all, err)
	}
	worker := nats.as(t, "worker").Objects()
	body, err := worker.Open(ctx, "set")
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(body); string(data) != "given" || err != nil || body.Close() != nil {
		t.Errorf("the worker reads %q, %v", data, err)
	}
	for _, service := range []string{"worker", "gateway"} {
		short, end := context.WithTimeout(t.Context(), time.Second)
		if err := nats.as(t, service).Objects().Put(short, "set", strings.NewReader("forged")); err == nil {
			t.Errorf("a %s writes", service)
		}
		end()
	}
}

// Gateways ask gateways and schedulers; no one else may ask, or answer in their place.
func TestWhoAsksIsAnswered(t *testing.T) {
	nats := start(t)
	answered := make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	for service, subject := range map[string]bus.Subject{"gateway": bus.AskGateways, "scheduler": bus.AskSchedulers} {
		b := nats.as(t, service)
		go func() {
			answered <- b.Answer(ctx, subject, func(question []byte) []byte {
				if string(question) != "known" {
					return nil
				}
				return []byte(service + " knows")
			})
		}()
	}
	asking := nats.as(t, "gateway")
	ask := func(b *bus.Bus, s bus.Subject, question string, wait time.Duration) (reply string) {
		t.Helper()
		if err := b.Ask(t.Context(), s, []byte(question), wait, func(got []byte) bool { reply = string(got); return true }); err != nil {
			t.Fatal(err)
		}
		return reply
	}
	for subject, want := range map[bus.Subject]string{bus.AskGateways: "gateway knows", bus.AskSchedulers: "scheduler knows"} {
		got := ""
		for end := time.Now().Add(patience); got == "" && time.Now().Before(end); { // until it has subscribed
			got = ask(asking, subject, "known", time.Second)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", subject, got, want)
		}
		if got := ask(asking, subject, "unknown", 50*time.Millisecond); got != "" {
			t.Errorf("%s: %q about what nobody knows", subject, got)
		}
		if got := ask(nats.as(t, "worker"), subject, "known", 50*time.Millisecond); got != "" {
			t.Errorf("a worker got %q of %s", got, subject)
		}
	}
	cancel()
	for range 2 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
}
