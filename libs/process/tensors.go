package process

import (
	"go.uber.org/zap"

	"github.com/nereid-serving/nereid/libs/config"
	"github.com/nereid-serving/nereid/libs/obs"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// arenaBytes is how much of a process's tensors others of its host may read in
// place. It bounds addresses; memory is allocated as it is used.
const arenaBytes = 64 << 30

// TensorSettings are those of a service that holds tensors.
type TensorSettings struct {
	ShareMemory config.Switch `name:"share-memory" default:"true" group:"Cluster" help:"Share memory with other services on this host, which then read large tensors in place; otherwise tensors go over streams."`
}

// Memory creates the memory for tensors: a pool that retains at most that many free bytes, and
// its arena, in which other processes of the host read tensors in place. Without shared memory
// the arena is nil, and tensors go over streams.
func (s TensorSettings) Memory(keep int64, log *zap.Logger) (*tensor.Pool, *shm.Arena) {
	if !s.ShareMemory.On {
		return tensor.NewPool(keep), nil
	}
	arena, err := shm.New(arenaBytes)
	if err != nil {
		log.Warn("tensors are not shared with other processes of the host", obs.Err(err)...)
		return tensor.NewPool(keep), nil
	}
	return tensor.NewPoolOf(arena, keep), arena
}
