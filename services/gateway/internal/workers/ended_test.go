package workers

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/nereid-serving/nereid/libs/errs"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// TestEndsThatWereAnnouncedAreNoWarnings has a stream end that nobody has
// announced, and then those that the gateway, the worker and its lease have.
func TestEndsThatWereAnnouncedAreNoWarnings(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	k := New(Deps{Log: zap.New(core)})
	k.epochs["w"] = 7
	m := &member{keeper: k, life: &life{epoch: 7}, id: "w", leased: true}
	k.members[7] = m
	err := errs.New(errs.PeerUnreachable, "the peer has ended the stream")
	stopped, stop := context.WithCancel(t.Context())
	stop()

	m.ended(t.Context(), err)
	m.ended(stopped, err)
	k.put(t.Context(), "w", &nereidv1.WorkerValue{Epoch: 7, Address: "w:8021", Leaving: true})
	m.ended(t.Context(), err)
	k.put(t.Context(), "w", &nereidv1.WorkerValue{Epoch: 7, Address: "w:8021"})
	m.ended(t.Context(), err)
	k.leave("w")
	m.ended(t.Context(), err)

	var levels []zapcore.Level
	for _, e := range logs.All() {
		levels = append(levels, e.Level)
	}
	want := []zapcore.Level{zap.WarnLevel, zap.InfoLevel, zap.InfoLevel, zap.WarnLevel, zap.InfoLevel}
	if diff := cmp.Diff(want, levels); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
}
