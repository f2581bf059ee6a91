package control

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/identity"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/state"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// poolTimeout is longer than a standby needs to take a pool over.
const poolTimeout = 5 * time.Second

// PoolClient calls the scheduler that holds a pool. It is safe for concurrent
// use.
type PoolClient struct{ caller *caller }

// NewPoolClient makes a client of the holder that the finder finds. It connects
// with the first call.
func NewPoolClient(f *Finder, o Options) *PoolClient {
	return &PoolClient{caller: newCaller(f, identity.Scheduler, o, poolTimeout)}
}

// Close cancels the calls in flight and refuses others.
func (p *PoolClient) Close() { p.caller.close() }

// Statistics returns one value for each ref, in their order: zero for a version
// that has had no request of this scheduler yet. The reason state_unavailable
// says that no scheduler holds the pool.
func (p *PoolClient) Statistics(ctx context.Context, refs []infer.ModelRef) ([]infer.Statistics, error) {
	request := &nereidv1.StatisticsRequest{Models: make([]*nereidv1.ModelRef, len(refs))}
	for i, ref := range refs {
		request.Models[i] = state.Ref(ref)
	}
	var response *nereidv1.StatisticsReply
	err := p.caller.call(ctx, p.unavailable, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		response, err = nereidv1.NewPoolServiceClient(conn).Statistics(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(response.GetModels()) != len(refs) {
		return nil, errs.New(errs.Bug, "the scheduler returned %d statistics for %d models", len(response.GetModels()), len(refs))
	}
	list := make([]infer.Statistics, len(refs))
	for i, m := range response.GetModels() {
		list[i] = toStatistics(m)
	}
	return list, nil
}

// Queues returns the waiting and running requests of the pool.
func (p *PoolClient) Queues(ctx context.Context) ([]infer.Queue, error) {
	var list []infer.Queue
	err := p.caller.call(ctx, p.unavailable, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		list, err = callQueues(ctx, conn)
		return err
	})
	return list, err
}

// Queues asks the scheduler at an address for the waiting and running requests of its pool.
func Queues(ctx context.Context, address string, o Options) ([]infer.Queue, error) {
	conn, err := grpc.NewClient(address, dialOptions(identity.Expect(o.TLS, identity.Scheduler))...)
	if err != nil {
		return nil, errs.Wrap(errs.StateUnavailable, err, "the address %q of a scheduler cannot be used: %v", address, err)
	}
	defer conn.Close()
	list, err := callQueues(ctx, conn)
	if err != nil {
		_, err = decode(err, "the scheduler at "+address)
	}
	return list, err
}

func callQueues(ctx context.Context, conn *grpc.ClientConn) ([]infer.Queue, error) {
	response, err := nereidv1.NewPoolServiceClient(conn).Queues(ctx, &nereidv1.QueuesRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]infer.Queue, len(response.GetQueues()))
	for i, q := range response.GetQueues() {
		list[i] = infer.Queue{
			Model: state.RefOf(q.GetModel()), Waiting: int(q.GetWaiting()), Running: int(q.GetRunning()), Oldest: time.Duration(q.GetOldestNs()),
		}
	}
	return list, nil
}

func (p *PoolClient) unavailable(cause error) error {
	return errs.Wrap(errs.StateUnavailable, cause, "no scheduler answers for %s: see which ones there are with nereid status", p.caller.finder.Role())
}

// Scheduler reports on its pool.
type Scheduler interface {
	// Statistics and Queues fail with state_unavailable while the scheduler
	// does not hold its pool.
	Statistics(context.Context, []infer.ModelRef) ([]infer.Statistics, error)
	Queues(context.Context) ([]infer.Queue, error)
}

// RegisterPool registers the calls of a scheduler of the named pool; failed is
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
		return nil, toStatus(ctx, err, s.failed)
	}
	response := &nereidv1.StatisticsReply{Models: make([]*nereidv1.ModelStatistics, len(list))}
	for i := range list {
		response.Models[i] = fromStatistics(&list[i])
	}
	return response, nil
}

// Queues implements the call.
func (s *poolServer) Queues(ctx context.Context, _ *nereidv1.QueuesRequest) (*nereidv1.QueuesReply, error) {
	list, err := s.scheduler.Queues(ctx)
	if err != nil {
		return nil, toStatus(ctx, err, s.failed)
	}
	return &nereidv1.QueuesReply{Queues: QueueStatuses(s.pool, list)}, nil
}

// QueueStatuses returns the queues of a pool as messages.
func QueueStatuses(pool string, list []infer.Queue) []*nereidv1.QueueStatus {
	queues := make([]*nereidv1.QueueStatus, len(list))
	for i, q := range list {
		queues[i] = &nereidv1.QueueStatus{
			Pool: pool, Model: state.Ref(q.Model), Waiting: uint64(q.Waiting), Running: uint64(q.Running), OldestNs: uint64(max(q.Oldest, 0)),
		}
	}
	return queues
}
