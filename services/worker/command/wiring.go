package command

import (
	"context"
	"slices"

	"google.golang.org/grpc"

	"github.com/nereid-serving/nereid/libs/lifecycle"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/libs/plane/link"
	"github.com/nereid-serving/nereid/libs/process"
	"github.com/nereid-serving/nereid/services/worker"
)

// keepMemory is how many bytes of free tensor memory the process retains for the next requests.
const keepMemory = 256 << 20

func (c *Command) service(ctx context.Context, p *process.Process) (process.Service, error) {
	peers, err := p.Listen(ctx, &c.Peers)
	if err != nil {
		return process.Service{}, err
	}
	config, err := c.config(p.ID, peers.Address())
	if err != nil {
		return process.Service{}, err
	}
	clock := mono.New()
	pool, arena := c.Tensors.Memory(keepMemory, p.Log)
	remote := worker.NewRemote(worker.RemoteDeps{
		ID: p.ID, Release: process.Release, Pool: c.Pool, Bus: p.Bus, TLS: p.Dialing, Tensors: pool, Arena: arena, Clock: clock, Metrics: p.Metrics, Log: p.Log,
	})
	w, err := worker.New(config, worker.Deps{
		Bus: p.Bus, Scheduler: remote.Scheduler(), Responder: remote.Responder(), Calls: remote.Calls(), Control: remote.Calls(), Clock: clock,
		Batches: remote.Batches(), MayStart: remote.MayStart, PipelinedBatches: remote.PipelinedBatches(), Settle: remote.Settle, Pool: pool, Metrics: p.Metrics, Log: p.Log,
	})
	if err != nil {
		return process.Service{}, err
	}
	server := grpc.NewServer(link.ServerOptions(p.Listening, p.Log)...)
	remote.Register(server)
	w.RegisterControl(server)
	w.RegisterRegions(server)
	return process.Service{
		Parts: slices.Concat([]lifecycle.Part{
			{Name: "host", Run: func(ctx context.Context) error { return c.Host.Host().Watch(ctx, p.Metrics, p.Log) }},
			{Name: "memory", Run: func(ctx context.Context) error { return process.ReturnMemory(ctx, pool) }},
			{Name: "peers", Run: func(ctx context.Context) error { return peers.Serve(ctx, server) }},
		}, remote.Parts(), []lifecycle.Part{{Run: w.Run}}),
		Ready: func() error { return process.NotReady(w.Ready(), "the worker does not know yet what to run") },
	}, nil
}
