package export

import (
	"sync/atomic"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// holdsLent reports whether outputs of a response are lent.
func holdsLent(r *infer.Response) bool {
	for i := range r.Outputs {
		if r.Outputs[i].Data.Place == tensor.Remote {
			return true
		}
	}
	return false
}

// bring copies tensors that are lent into memory of this process, so that they stay
// what they are whatever becomes of the holder. It gives up when over is closed.
func (p *peer) bring(tensors []infer.Tensor, over <-chan struct{}) error {
	for i := range tensors {
		if tensors[i].Data.Place != tensor.Remote {
			continue
		}
		local, err := p.copy(tensors[i].Data, over)
		if err != nil {
			return err
		}
		tensors[i].Data = local
	}
	return nil
}

func (p *peer) copy(named tensor.Ref, over <-chan struct{}) (tensor.Ref, error) {
	p.mu.Lock()
	there, ok := p.mapped(named)
	var region *shm.Region
	if ok {
		region = p.stream().region
	}
	p.mu.Unlock()
	if !ok {
		return p.await(named, over)
	}
	defer there.Release() // by which the region stays
	return copied(region, named, p.endpoint.config.Pool)
}

// await fetches a tensor's bytes.
func (p *peer) await(named tensor.Ref, over <-chan struct{}) (tensor.Ref, error) {
	type fetched struct {
		local tensor.Ref
		err   error
	}
	var settled atomic.Bool
	came := make(chan fetched, 1)
	abandon := p.endpoint.Fetch(named, func(local tensor.Ref, err error) {
		if settled.Swap(true) {
			local.Release()
			return
		}
		came <- fetched{local, err}
	})
	select {
	case f := <-came:
		return f.local, f.err
	case <-over:
	}
	abandon()
	if settled.Swap(true) {
		f := <-came
		return f.local, f.err
	}
	return tensor.Ref{}, errs.New(errs.TransferFailed, "a tensor of %d bytes is not waited for any more: its stream has ended", named.Length)
}
