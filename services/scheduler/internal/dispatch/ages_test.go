package dispatch_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
	"github.com/nereid-serving/nereid/services/scheduler/internal/dispatch"
	"github.com/nereid-serving/nereid/services/scheduler/internal/stats"
)

func TestQueueAgeIsThatOfTheOldestRequest(t *testing.T) {
	a := newAnswers()
	l, w, _ := startModel(t, a, &modelconfig.Config{Name: "m", MaxBatchSize: 1})
	l.Grant(infer.Grant{Instance: slot0, Model: model, Credits: 1})
	send := func(n uint64) {
		if err := l.Submit(request(n, &counter{})); err != nil {
			t.Fatal(err)
		}
	}
	send(1)
	running := <-w.orders
	send(2)
	send(3)
	first := testutil.ToFloat64(l.Ages())
	if second := testutil.ToFloat64(l.Ages()); first <= 0 || second <= first {
		t.Errorf("while requests wait the age is %v, then %v", first, second)
	}
	for range 2 {
		w.finish(running)
		running = <-w.orders
	}
	if age := testutil.ToFloat64(l.Ages()); age != 0 {
		t.Errorf("the age of an empty queue is %v", age)
	}
	w.finish(running)
	if problems, err := testutil.CollectAndLint(l.Ages()); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

func TestAgesOfALoopThatDoesNotRun(t *testing.T) {
	l, err := dispatch.New(core.Config{}, dispatch.Deps{Clock: mono.New(), Responder: newAnswers(), Stats: stats.NewSet(stats.DefaultLatencies())})
	if err != nil {
		t.Fatal(err)
	}
	l.Configure(model, new(modelconfig.Config))
	if err := testutil.CollectAndCompare(l.Ages(), strings.NewReader("")); err != nil {
		t.Error(err)
	}
}
