package export_test

import (
	"fmt"
	"testing"

	"github.com/nereid-serving/nereid/libs/infer"
)

// An answer of many outputs, each small enough to go in it, may be larger than
// the window: it uses no credit for good.
func TestAnswersLargerThanTheWindow(t *testing.T) {
	const outputs, size, answers = 64, 200 << 10, 4
	p := newPlane(t, modes()[1])
	p.attach()
	p.connect()
	for n := range uint64(answers) {
		r := &infer.Response{Work: work(n + 1), Final: true}
		for i := range outputs {
			r.Outputs = append(r.Outputs, p.worker.tensorOf(t, fmt.Sprint(i), size))
		}
		p.at.Respond(r)
	}
	for n := range uint64(answers) {
		r := p.answer()
		if r.Work != work(n+1) || r.Err != nil || len(r.Outputs) != outputs {
			t.Errorf("answer %d: to %v, %d outputs, %v", n+1, r.Work, len(r.Outputs), r.Err)
		}
		r.Release()
	}
	p.stop()
	p.at.Close()
	p.gateway.checkEmpty(t, "gateway")
	p.worker.checkEmpty(t, "worker")
}
