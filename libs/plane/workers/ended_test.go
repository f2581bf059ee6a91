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

// An end of a stream is a warning unless it was announced: by the gateway that
// stops, by the worker, or by the end of the lease.
func TestEndsThatWereAnnouncedAreNoWarnings(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	c := New(Deps{Log: zap.New(core)})
	c.epochs["w"] = 7
	m := &connection{connector: c, incarnation: &incarnation{epoch: 7}, id: "w", leased: true, running: true}
	c.connections[7] = m
	err := errs.New(errs.PeerUnreachable, "the peer has ended the stream")
	stopped, stop := context.WithCancel(t.Context())
	stop()

	m.logEnd(t.Context(), err)
	m.logEnd(stopped, err)
	c.put("w", &nereidv1.WorkerValue{Epoch: 7, Address: "w:8021", Leaving: true})
	m.logEnd(t.Context(), err)
	c.put("w", &nereidv1.WorkerValue{Epoch: 7, Address: "w:8021"})
	m.logEnd(t.Context(), err)
	c.endLease("w")
	m.logEnd(t.Context(), err)

	var levels []zapcore.Level
	for _, e := range logs.All() {
		levels = append(levels, e.Level)
	}
	want := []zapcore.Level{zap.WarnLevel, zap.InfoLevel, zap.InfoLevel, zap.WarnLevel, zap.InfoLevel}
	if diff := cmp.Diff(want, levels); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
}
