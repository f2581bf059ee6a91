package wiring

import (
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// small goes with the request's descriptor, large does not.
const small, large = 64, 600 << 10

// fails checks that the next answer is an error.
func (s *scene) fails(number uint64, reason errs.Reason, text string) {
	s.Helper()
	r := s.answer(number)
	defer r.Release()
	if e := errs.From(r.Err); e == nil || e.Reason != reason || text != "" && e.Msg != text {
		s.Errorf("request %d ended with %v, want %s: %s", number, r.Err, reason, text)
	}
}

func TestTheSameHappensInEveryWiring(t *testing.T) {
	for _, tt := range []struct {
		name  string
		apart bool // cannot be in one process
		play  func(*scene)
	}{
		{"a request is answered", false, func(s *scene) {
			for number, n := range []int{small, large} {
				s.submit(s.request(uint64(number), n))
				s.finish(s.order(uint64(number)), nil)
				s.result(uint64(number), n)
			}
			s.over(2, 0)
		}},
		{"what waits is batched", false, func(s *scene) {
			s.submit(s.request(1, small))
			first := s.order(1)
			s.submit(s.request(2, small), s.request(3, small), s.request(4, small))
			s.waiting(3)
			s.finish(first, nil)
			s.result(1, small)
			s.finish(s.order(2, 3, 4), nil)
			for number := range uint64(3) {
				s.result(number+2, small)
			}
			s.over(4, 0)
		}},
		{"a full queue refuses", false, func(s *scene) {
			s.submit(s.request(1, small))
			first := s.order(1)
			s.submit(s.request(2, small), s.request(3, small), s.request(4, small))
			s.waiting(3)
			s.submit(s.request(5, large))
			s.fails(5, errs.MaxQueueSize, "[request id: <id_unknown>] Exceeds maximum queue size")
			s.finish(first, nil)
			s.result(1, small)
			s.finish(s.order(2, 3, 4), nil)
			for number := range uint64(3) {
				s.result(number+2, small)
			}
			s.over(4, 1)
		}},
		{"a batch takes what its worker has memory for", false, func(s *scene) {
			s.submit(s.request(1, small))
			first := s.order(1)
			s.submit(s.request(2, large), s.request(3, large), s.request(4, large))
			s.waiting(3)
			s.finish(first, nil)
			s.result(1, small)
			s.finish(s.order(2, 3), nil)
			s.result(2, large)
			s.result(3, large)
			s.finish(s.order(4), nil)
			s.result(4, large)
			s.over(4, 0)
		}},
		{"a worker says again what memory it has", true, func(s *scene) {
			s.submit(s.request(1, small))
			first := s.order(1)
			s.cut()
			s.submit(s.request(2, large), s.request(3, large), s.request(4, large))
			s.waiting(3)
			s.finish(first, nil)
			s.result(1, small)
			s.finish(s.order(2, 3), nil)
			s.finish(s.order(4), nil)
			for number := uint64(2); number <= 4; number++ {
				s.result(number, large)
			}
			s.over(4, 0)
		}},
		{"what waits is cancelled", false, func(s *scene) {
			s.submit(s.request(1, small))
			first := s.order(1)
			s.submit(s.request(2, large))
			s.waiting(1)
			s.gateway.Cancel(s.request(2, 0).Work.Request)
			s.fails(2, errs.Canceled, "")
			s.finish(first, nil)
			s.result(1, small)
			s.over(1, 1)
		}},
		{"what runs is cancelled", false, func(s *scene) {
			s.submit(s.request(1, large))
			o := s.order(1)
			s.gateway.Cancel(o.Requests[0].Work.Request)
			if id := next(s, s.cancelled, "cancellation"); id.Number != 1 {
				s.Errorf("request %d is cancelled", id.Number)
			}
			s.finish(o, errs.New(errs.Canceled, ""))
			s.fails(1, errs.Canceled, "")
			s.over(0, 1)
		}},
		{"a deadline passes in the queue", false, func(s *scene) {
			s.submit(s.request(1, small))
			first := s.order(1)
			r := s.request(2, large)
			r.Deadline = s.clock.Now().Add(time.Second)
			s.submit(r)
			s.fails(2, errs.DeadlineQueue, "[request id: <id_unknown>] the deadline passed while the request waited")
			s.finish(first, nil)
			s.result(1, small)
			s.over(1, 1)
		}},
		{"an order is given back", false, func(s *scene) {
			s.submit(s.request(1, large))
			o := s.order(1)
			s.grant(1)
			s.worker.Return(o, errs.New(errs.NoWorker, "the instance is gone"))
			s.finish(s.order(1), nil)
			s.result(1, large)
			s.over(1, 0)
		}},
		{"a scheduler hands over to the next", true, func(s *scene) {
			s.submit(s.request(1, small))
			running := s.order(1)
			s.submit(s.request(2, large))
			s.waiting(1)
			s.scheduler.stop()
			s.finish(running, nil)
			s.result(1, small) // without a scheduler
			s.begin()
			s.finish(s.order(2), nil)
			s.result(2, large)
			s.over(1, 0) // by the second
		}},
		{"streams break", true, func(s *scene) {
			s.submit(s.request(1, small))
			running := s.order(1)
			s.submit(s.request(2, large))
			s.waiting(1)
			s.cut()
			s.waiting(1)
			s.finish(running, nil)
			s.result(1, small)
			s.finish(s.order(2), nil)
			s.result(2, large)
			s.over(2, 0)
		}},
		{"an order goes ahead", true, func(s *scene) {
			first, second, n := s.ahead()
			s.finish(first, nil)
			s.result(n-1, small)
			s.finish(second, nil)
			s.result(n, small)
			s.over(n, 0)
		}},
		{"what is ahead is cancelled", true, func(s *scene) {
			first, second, n := s.ahead()
			s.gateway.Cancel(second.Requests[0].Work.Request)
			if id := next(s, s.cancelled, "cancellation"); id.Number != n {
				s.Errorf("request %d is cancelled", id.Number)
			}
			s.finish(first, nil)
			s.result(n-1, small)
			s.finish(second, errs.New(errs.Canceled, ""))
			s.fails(n, errs.Canceled, "")
			s.over(n-1, 1)
		}},
		{"what is ahead is given back, and its worker attaches anew", true, func(s *scene) {
			first, second, n := s.ahead()
			s.worker.Return(second, errs.New(errs.PeerUnreachable, "the worker stood still"))
			s.waiting(1)
			s.cut()
			s.waiting(1)
			s.finish(first, nil)
			s.result(n-1, small)
			s.finish(s.order(n), nil)
			s.result(n, small)
			s.over(n, 0)
		}},
		{"streams break with an order ahead", true, func(s *scene) {
			first, second, n := s.ahead()
			s.cut()
			s.uncounted++           // both may end before the next stream
			s.submit(s.full(n + 1)) // the instance takes no third
			s.waiting(1)
			s.finish(first, nil)
			s.result(n-1, small)
			s.finish(second, nil)
			s.result(n, small)
			s.finish(s.order(n+1), nil)
			s.result(n+1, small)
			s.over(n+1, 0)
		}},
		{"a scheduler hands over with an order ahead", true, func(s *scene) {
			first, second, n := s.ahead()
			s.scheduler.stop()
			s.finish(first, nil)
			s.result(n-1, small) // without a scheduler
			s.begin()
			s.submit(s.full(n + 1))
			s.finish(second, nil)
			s.result(n, small)
			s.finish(s.order(n+1), nil)
			s.result(n+1, small)
			s.uncounted++ // the second order may have ended before the next scheduler was there
			s.over(2, 0)
		}},
	} {
		for _, w := range wirings() {
			if tt.apart && !w.apart() {
				continue
			}
			t.Run(tt.name+"/"+w.name, func(t *testing.T) { tt.play(newScene(t, w)) })
		}
	}
}
