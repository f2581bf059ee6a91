package dispatch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

func TestRefusalsHaveTritonsTexts(t *testing.T) {
	got := map[errs.Reason]string{}
	for _, reason := range []errs.Reason{
		errs.MaxQueueSize, errs.QueueTimeout, errs.ModelNotReady, errs.Canceled,
		errs.CorrelationMissing, errs.BatchSizeExceeded, errs.SequenceNotStarted, errs.SequenceTimeout,
	} {
		got[reason] = refusal(&infer.Request{ID: "7", Sequence: infer.Sequence{ID: 9}, Model: infer.ModelRef{Name: "m", Version: 3}}, reason).Msg
	}
	want := map[errs.Reason]string{
		errs.MaxQueueSize:  "[request id: 7] Exceeds maximum queue size",
		errs.QueueTimeout:  "Request timeout expired",
		errs.ModelNotReady: "Request for unknown model: 'm' version 3 is not at ready state",
		errs.Canceled:      "",

		errs.CorrelationMissing: "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
		errs.BatchSizeExceeded:  "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher",
		errs.SequenceNotStarted: "inference request for sequence 9 to model 'm' must specify the START flag on the first request of the sequence",
		errs.SequenceTimeout:    "timeout of the corresponding sequence has been expired",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if e := refusal(&infer.Request{}, errs.MaxQueueSize); e.Msg != "[request id: <id_unknown>] Exceeds maximum queue size" {
		t.Errorf("without an id: %s", e.Msg)
	}
}
