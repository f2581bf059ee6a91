package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/nereid-serving/nereid/libs/bus"
	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds how long a test waits for a real server; no test measures it.
const patience = 2 * time.Minute

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// open opens a bus with its buckets and closes it with the test.
func open(t *testing.T, cfg bus.Config) *bus.Bus {
	t.Helper()
	cfg.Log = zaptest.NewLogger(t, zaptest.Level(zap.ErrorLevel))
	b, err := bus.Open(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeBus(t, b) })
	if err := b.EnsureBuckets(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return b
}

func closeBus(t *testing.T, b *bus.Bus) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

type text = *wrapperspb.StringValue

// textCodec writes strings as JSON strings.
func textCodec() bus.Codec[text] {
	return bus.Codec[text]{
		Encode: func(v text) ([]byte, error) { return json.Marshal(v.GetValue()) },
		Decode: func(data []byte) (text, error) {
			var s string
			err := json.Unmarshal(data, &s)
			return value(s), err
		},
	}
}

func value(s string) text { return wrapperspb.String(s) }

// texts gives a bucket of strings, which are JSON strings in the store.
func texts(t *testing.T, b *bus.Bus, name string) *bus.Bucket[text] {
	t.Helper()
	bucket, err := bus.NewBucket(b, name, textCodec())
	if err != nil {
		t.Fatal(err)
	}
	return bucket
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestOpenErrorsSayWhatIsWrong(t *testing.T) {
	taken := t.TempDir()
	open(t, bus.Config{Dir: taken})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		cfg  bus.Config
		want string
	}{
		{"directory in use", bus.Config{Dir: taken}, "in use by another process"},
		{"directory cannot be made", bus.Config{Dir: filepath.Join(file, "bus")}, "name a directory that can be written"},
		{"nobody at the URL", bus.Config{URL: "nats://127.0.0.1:1"}, "check that NATS runs there"},
		{"no port to listen on", bus.Config{Listen: "localhost"}, "write host:port"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := bus.Open(testContext(t), tt.cfg)
			if err == nil {
				closeBus(t, b)
			}
			if errs.Of(err) != errs.StateUnavailable || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want state_unavailable with %q", err, tt.want)
			}
		})
	}
}

// TestUnusableCredentials: waiting for NATS does not change these errors.
func TestUnusableCredentials(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", dir: "cannot read the NATS credentials", file: "must hold a user's key",
	} {
		_, err := bus.Open(testContext(t), bus.Config{URL: "nats://127.0.0.1:1", Credentials: path})
		if errs.Of(err) != errs.ConfigInvalid || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want config_invalid with %q", path, err, want)
		}
	}
}

func TestRedactedHidesPasswords(t *testing.T) {
	if got := bus.Redacted("nats://user:secret@one:4222, nats://two:4222,::"); got != "nats://user:xxxxx@one:4222,nats://two:4222,::" {
		t.Error(got)
	}
}

// TestEnsureBucketsBringsABucketToItsRow changes a stream, as an earlier release
// would have made it.
func TestEnsureBucketsBringsABucketToItsRow(t *testing.T) {
	ctx := testContext(t)
	b := open(t, bus.Config{Listen: "127.0.0.1:0"})
	js := raw(t, b)
	stream := must[jetstream.Stream](t)(js.Stream(ctx, bus.StreamName(bus.Models)))
	want := stream.CachedInfo().Config.MaxMsgSize
	changed := stream.CachedInfo().Config
	changed.MaxMsgSize = 8
	must[jetstream.Stream](t)(js.UpdateStream(ctx, changed))
	// What is too large for the server is no conflict.
	if _, err := texts(t, b, bus.Models).Put(ctx, "m", value("more than eight")); errs.Of(err) != errs.StateUnavailable || errors.Is(err, bus.ErrConflict) {
		t.Errorf("Put of what the stream does not take: %v", err)
	}
	if err := b.EnsureBuckets(ctx); err != nil {
		t.Fatal(err)
	}
	if got := must[*jetstream.StreamInfo](t)(stream.Info(ctx)).Config.MaxMsgSize; got != want {
		t.Errorf("values of %d bytes, want %d", got, want)
	}
}

func TestTemporaryStateIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	closeBus(t, open(t, bus.Config{}))
	if left := must[[]os.DirEntry](t)(os.ReadDir(os.TempDir())); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestEqualValuesAreEqualBytes(t *testing.T) {
	codec := bus.Values[*nereidv1.LeaderValue]()
	v := &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: "x y", Epoch: 7}
	if got := string(must[[]byte](t)(codec.Encode(v))); got != `{"schema":1,"holder":"x y","epoch":"7"}` {
		t.Errorf("Encode = %s", got)
	}
	// A newer release's field is skipped.
	back := must[*nereidv1.LeaderValue](t)(codec.Decode([]byte(`{"schema":1,"holder":"n","newer":[1]}`)))
	if back.GetHolder() != "n" {
		t.Errorf("Decode = %v", back)
	}
	if _, err := codec.Decode([]byte(`{"holder":"n"}`)); err == nil {
		t.Error("a value without a schema is read")
	}
}
