package control

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/remote/leader"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// poolPatience is longer than a standby takes to take a pool over.
const poolPatience = 5 * time.Second

// Pool asks the scheduler that holds a pool. It is safe for concurrent use.
type Pool struct{ caller *caller }

// NewPool makes a client of the holder that the finder finds. It connects when
// it is used.
func NewPool(f *leader.Finder, o Options) *Pool {
	return &Pool{caller: newCaller(f, o, poolPatience)}
}

// Close ends the calls under way and refuses others.
func (p *Pool) Close() { p.caller.close() }

// Statistics returns one value for each ref, in their order: zero for a version
// that has had no request of this scheduler yet. state_unavailable is that no
// scheduler holds the pool.
func (p *Pool) Statistics(ctx context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	request := &nereidv1.StatisticsRequest{Models: make([]*nereidv1.ModelRef, len(refs))}
	for i, ref := range refs {
		request.Models[i] = state.Ref(ref)
	}
	var reply *nereidv1.StatisticsReply
	err := p.caller.call(ctx, p.nobody, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		reply, err = nereidv1.NewPoolServiceClient(conn).Statistics(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(reply.GetModels()) != len(refs) {
		return nil, errs.New(errs.Bug, "the scheduler was asked for %d statistics and gave %d", len(refs), len(reply.GetModels()))
	}
	list := make([]infer.Statistics, len(refs))
	for i, m := range reply.GetModels() {
		list[i] = toStatistics(m)
	}
	return list, nil
}

// Queues tells what waits and runs in the pool.
func (p *Pool) Queues(ctx context.Context) ([]infer.Queue, error) {
	var list []infer.Queue
	err := p.caller.call(ctx, p.nobody, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		list, err = queues(ctx, conn)
		return err
	})
	return list, err
}

// Queues asks the scheduler at an address what waits and runs in its pool.
func Queues(ctx context.Context, address string, o Options) ([]infer.Queue, error) {
	conn, err := grpc.NewClient(address, dialOptions(o.TLS)...)
	if err != nil {
		return nil, errs.Wrap(errs.StateUnavailable, err, "the address %q of a scheduler cannot be dialled: %v", address, err)
	}
	defer conn.Close()
	list, err := queues(ctx, conn)
	if err != nil {
		_, err = decode(err, "the scheduler at "+address)
	}
	return list, err
}

// queues makes the call.
func queues(ctx context.Context, conn *grpc.ClientConn) ([]infer.Queue, error) {
	reply, err := nereidv1.NewPoolServiceClient(conn).Queues(ctx, &nereidv1.QueuesRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]infer.Queue, len(reply.GetQueues()))
	for i, q := range reply.GetQueues() {
		list[i] = infer.Queue{
			Model: state.RefOf(q.GetModel()), Waiting: int(q.GetWaiting()), Running: int(q.GetRunning()), Oldest: time.Duration(q.GetOldestNs()),
		}
	}
	return list, nil
}

func (p *Pool) nobody(cause error) error {
	return errs.Wrap(errs.StateUnavailable, cause, "no scheduler answers for %s: see which ones there are with nereid status", p.caller.finder.Role())
}

// Scheduler is what a scheduler tells of its pool.
type Scheduler interface {
	// Statistics and Queues fail with state_unavailable while the scheduler
	// does not hold its pool.
	Statistics(context.Context, []infer.ModelRef) ([]infer.Statistics, error)
	Queues(context.Context) ([]infer.Queue, error)
}

// RegisterPool has a server answer for a scheduler of the named pool; failed is
// as with [RegisterRegistry].
func RegisterPool(r grpc.ServiceRegistrar, pool string, s Scheduler, failed func(error)) {
	nereidv1.RegisterPoolServiceServer(r, &poolServer{pool: pool, scheduler: s, failed: failed})
}

type poolServer struct {
	nereidv1.UnimplementedPoolServiceServer
	pool      string
	scheduler Scheduler
	failed    func(error)
}

// Statistics implements the call.
func (s *poolServer) Statistics(ctx context.Context, r *nereidv1.StatisticsRequest) (*nereidv1.StatisticsReply, error) {
	refs := make([]infer.ModelRef, len(r.GetModels()))
	for i, m := range r.GetModels() {
		refs[i] = state.RefOf(m)
	}
	list, err := s.scheduler.Statistics(ctx, refs)
	if err != nil {
		return nil, answer(ctx, err, s.failed)
	}
	reply := &nereidv1.StatisticsReply{Models: make([]*nereidv1.ModelStatistics, len(list))}
	for i := range list {
		reply.Models[i] = fromStatistics(&list[i])
	}
	return reply, nil
}

// Queues implements the call.
func (s *poolServer) Queues(ctx context.Context, _ *nereidv1.QueuesRequest) (*nereidv1.QueuesReply, error) {
	list, err := s.scheduler.Queues(ctx)
	if err != nil {
		return nil, answer(ctx, err, s.failed)
	}
	return &nereidv1.QueuesReply{Queues: QueueStatuses(s.pool, list)}, nil
}

// QueueStatuses are the queues of a pool as messages.
func QueueStatuses(pool string, list []infer.Queue) []*nereidv1.QueueStatus {
	queues := make([]*nereidv1.QueueStatus, len(list))
	for i, q := range list {
		queues[i] = &nereidv1.QueueStatus{
			Pool: pool, Model: state.Ref(q.Model), Waiting: uint64(q.Waiting), Running: uint64(q.Running), OldestNs: uint64(max(q.Oldest, 0)),
		}
	}
	return queues
}
