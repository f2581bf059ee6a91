package export_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
)

// cutting keeps a stream and cuts it when it is told to, until it is stopped.
type cutting struct {
	cut  chan struct{} // has room for one
	over chan struct{}
	done chan struct{}
}

// cutOften begins with a stream; connect returns how it ends.
func cutOften(connect func() (stop func())) *cutting {
	c := &cutting{cut: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for {
			stop := connect()
			select {
			case <-c.cut:
				stop()
			case <-c.over:
				stop()
				return
			}
		}
	}()
	return c
}

func (c *cutting) again() {
	select {
	case c.cut <- struct{}{}:
	default:
	}
}

func (c *cutting) stop() {
	close(c.over)
	<-c.done
}

// histories are the lives of many requests at once.
type histories struct {
	t *testing.T
	p *plane
	s *pool
	l *lender // a worker that has inputs, too

	mu      sync.Mutex
	waiting map[infer.RequestID]chan *infer.Response
	twice   int
}

func (h *histories) Respond(r *infer.Response) {
	h.mu.Lock()
	ch, ok := h.waiting[r.Work.Request]
	delete(h.waiting, r.Work.Request)
	if !ok {
		h.twice++
	}
	h.mu.Unlock()
	if !ok {
		r.Release()
		return
	}
	ch <- r
}

// live sends one order of one to three requests through a random life, and
// waits for all its answers.
func (h *histories) live(random *rand.Rand, id uint64) {
	sizes := []int{0, 100, 9 << 10, 20 << 10, 100 << 10, 700 << 10}
	var requests []*infer.Request
	var inputs [][]infer.Tensor // as they are, wherever they lie
	var answers []chan *infer.Response
	for i := range 1 + random.IntN(3) {
		r := &infer.Request{Work: work(10*id + uint64(i)), BatchSize: 1}
		for range random.IntN(3) {
			r.Inputs = append(r.Inputs, h.p.gateway.tensorOf(h.t, "in", sizes[random.IntN(len(sizes))]))
		}
		all := append([]infer.Tensor(nil), r.Inputs...)
		if random.IntN(3) == 0 {
			all = append(all, h.l.tensorOf(h.t, "in", sizes[2+random.IntN(4)]))
			named, lease := h.l.Exports.Lend(all[len(all)-1:], lenderEpoch)
			defer lease.Release()
			r.Inputs = append(r.Inputs, named...)
		}
		inputs = append(inputs, all)
		if random.IntN(20) == 0 {
			r.Deadline = h.p.clock.Now().Add(time.Duration(random.IntN(int(time.Millisecond))) + time.Millisecond)
		}
		requests, answers = append(requests, r), append(answers, make(chan *infer.Response, 1))
	}
	h.mu.Lock()
	for i, r := range requests {
		h.waiting[r.Work.Request] = answers[i]
	}
	h.mu.Unlock()
	o := h.p.order(id, requests...)
	one := requests[random.IntN(len(requests))].Work.Request
	early := random.IntN(20) == 0
	if early { // the scheduler has told the gateway of a worker's death
		h.p.forget(one)
	}
	h.s.executor.Execute(o)
	if random.IntN(10) == 0 {
		h.s.executor.Cancel(o.ID, one)
	}
	for i, r := range requests {
		h.check(<-answers[i], r, inputs[i], early && r.Work.Request == one)
		h.p.forget(r.Work.Request)
		for j := range inputs[i] {
			inputs[i][j].Data.Release()
		}
	}
}

func (h *histories) check(a *infer.Response, r *infer.Request, inputs []infer.Tensor, lost bool) {
	defer a.Release()
	switch reason := errs.Of(a.Err); {
	case a.Err == nil:
	case reason == errs.Canceled, reason == errs.TransferFailed && lost, reason == errs.DeadlineQueue && r.Deadline != 0:
		return
	default:
		h.t.Errorf("request %v: %v", r.Work.Request, a.Err)
		return
	}
	if len(a.Outputs) != len(r.Inputs) {
		h.t.Errorf("request %v has %d outputs, want %d", r.Work.Request, len(a.Outputs), len(r.Inputs))
		return
	}
	for i := range a.Outputs {
		got, _ := a.Outputs[i].Data.Bytes()
		want, _ := inputs[i].Data.Bytes()
		if string(got) != string(want) {
			h.t.Errorf("request %v: output %d differs", r.Work.Request, i)
		}
	}
}

// lives is how many orders a random history has: NEREID_HISTORIES, or as many
// as meet hundreds of cuts.
func lives(t *testing.T) int {
	text, ok := os.LookupEnv("NEREID_HISTORIES")
	if !ok {
		return 1200
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("NEREID_HISTORIES: %v", err)
	}
	return n
}

// Over many lives, while the stream is cut again and again, each request is
// answered once, with its own bytes, and nothing is kept.
func TestRandomHistoriesWithCuts(t *testing.T) {
	lives, crowd := lives(t), 8
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			p := newPlane(t, m)
			h := &histories{t: t, p: p, s: p.attach(), l: newLender(t, m, nil), waiting: make(map[infer.RequestID]chan *infer.Response)}
			defer h.l.stop()
			p.to = h
			streams := []*cutting{cutOften(func() func() { p.connect(); return p.stop }), cutOften(h.l.connect(t, p.at))}
			var group sync.WaitGroup
			for lane := range crowd {
				group.Go(func() {
					random := rand.New(rand.NewPCG(uint64(lane), 1))
					for i := range lives / len(modes()) / crowd {
						h.live(random, uint64(crowd*i+lane+1))
						if random.IntN(20) == 0 {
							streams[random.IntN(2)].again()
						}
					}
				})
			}
			completed := 0
			all := make(chan struct{})
			go func() { group.Wait(); close(all) }()
			for running := true; running; {
				select {
				case <-h.s.completed:
					completed++
				case <-all:
					running = false
				case <-time.After(patience):
					t.Fatalf("nothing more happens after %d orders", completed)
				}
			}
			for want := lives / len(modes()) / crowd * crowd; completed < want; completed++ {
				<-h.s.completed
			}
			for _, c := range streams {
				c.stop()
			}
			h.l.checkEmpty(t, "lender")
			if h.twice > 0 {
				t.Errorf("%d answers came twice", h.twice)
			}
			if n := p.from.Exports.Len() + h.l.Exports.Len(); n > 0 {
				t.Errorf("%d buffers are still lent", n)
			}
		})
	}
}

// What waits for a gateway is released when the gateway is gone.
func TestAnswersForAGatewayThatIsGoneAreReleased(t *testing.T) {
	p := newPlane(t, modes()[0])
	s := p.attach()
	out := p.worker.tensorOf(t, "out", 1<<20)
	p.at.Respond(&infer.Response{Work: work(1), Final: true, Outputs: []infer.Tensor{out}})
	asked := &infer.Request{Work: work(2), Inputs: []infer.Tensor{p.gateway.tensorOf(t, "in", 1<<20)}}
	s.executor.Execute(p.order(1, asked))
	p.at.Gone(gatewayEpoch)
	if c := <-s.completed; len(c.Outcomes) != 1 || c.Outcomes[0] != infer.Rejected {
		t.Errorf("the order of a gateway that is gone ended as %+v", c)
	}
	p.worker.checkEmpty(t, "worker")
	p.forget(asked.Work.Request)
	asked.Release()
}

// A gateway without a lease is served as long as its stream is up.
func TestStreamOutlivesTheLease(t *testing.T) {
	p := newPlane(t, modes()[0])
	p.attach()
	p.connect()
	defer p.stop()
	for n := range uint64(2) {
		p.at.Respond(&infer.Response{Work: work(n), Final: true})
		r := p.answer()
		if r.Work != work(n) {
			t.Errorf("answer %v, want %v", r.Work, work(n))
		}
		r.Release()
		p.at.Gone(gatewayEpoch)
	}
}
