package bus_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nereid-serving/nereid/libs/bus"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// A process opens the store, here one inside itself, and makes the buckets if it
// may.
func Example() {
	ctx := context.Background()
	b, err := bus.Open(ctx, bus.Config{Name: "example"})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	if err := b.EnsureBuckets(ctx); err != nil {
		log.Fatal(err)
	}
	pools, err := bus.NewBucket(b, bus.Pools, bus.Values[*nereidv1.PoolValue]())
	if err != nil {
		log.Fatal(err)
	}
	revision, err := pools.Create(ctx, "default", &nereidv1.PoolValue{Schema: nereidv1.Schema, Name: "default"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = pools.Update(ctx, "default", &nereidv1.PoolValue{Schema: nereidv1.Schema, Name: "default", Models: []string{"digits"}}, revision)
	if err != nil {
		log.Fatal(err)
	}
	entry, err := pools.Get(ctx, "default")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(entry.Key, entry.Value.GetModels())
	// Output: default [digits]
}

// A reader that must stay current keeps what the events of a watch say.
func ExampleBucket_Watch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b, pools := openPools(ctx)
	defer b.Close()
	if _, err := pools.Put(ctx, "edge", &nereidv1.PoolValue{Schema: nereidv1.Schema, Name: "edge"}); err != nil {
		log.Fatal(err)
	}
	for event := range pools.Watch(ctx) {
		switch event.Kind {
		case bus.EventPut:
			fmt.Println("pool", event.Key)
		case bus.EventDelete:
			fmt.Println("no pool", event.Key)
			cancel() // which ends the watch
		case bus.EventCaughtUp:
			fmt.Println("caught up")
			if err := pools.Delete(ctx, "edge", 0); err != nil {
				log.Fatal(err)
			}
		}
	}
	// Output:
	// pool edge
	// caught up
	// no pool edge
}

// One of several replicas leads while it holds the key of the role. The next one
// acquires it as soon as it is released, under a higher epoch.
func ExampleBucket_Acquire() {
	ctx := context.Background()
	b, err := bus.Open(ctx, bus.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	if err := b.EnsureBuckets(ctx); err != nil {
		log.Fatal(err)
	}
	leaders, err := bus.NewBucket(b, bus.Leaders, bus.Values[*nereidv1.LeaderValue]())
	if err != nil {
		log.Fatal(err)
	}
	lead := func(holder string) *bus.Lease[*nereidv1.LeaderValue] {
		lease, err := leaders.Acquire(ctx, bus.Claim[*nereidv1.LeaderValue]{
			Key: "registry",
			Value: func(epoch uint64) *nereidv1.LeaderValue {
				return &nereidv1.LeaderValue{Schema: nereidv1.Schema, Holder: holder, Epoch: epoch}
			},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(holder, "leads")
		return lease
	}
	first := lead("a")
	if err := first.Release(ctx); err != nil {
		log.Fatal(err)
	}
	second := lead("b")
	fmt.Println("higher epoch:", second.Epoch() > first.Epoch())
	if err := second.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// a leads
	// b leads
	// higher epoch: true
}

func openPools(ctx context.Context) (*bus.Bus, *bus.Bucket[*nereidv1.PoolValue]) {
	b, err := bus.Open(ctx, bus.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := b.EnsureBuckets(ctx); err != nil {
		log.Fatal(err)
	}
	pools, err := bus.NewBucket(b, bus.Pools, bus.Values[*nereidv1.PoolValue]())
	if err != nil {
		log.Fatal(err)
	}
	return b, pools
}
