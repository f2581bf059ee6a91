package path

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/regions"
)

// Shared are the tensors of an inference that are in regions of its client's memory.
type Shared struct {
	Inputs  []regions.Input
	Outputs []regions.Output
}

// shared holds the windows that a call uses until it ends: a region stays open until then even if it is
// unregistered meanwhile.
type shared struct {
	windows []regions.Window // of the inputs, then of the outputs
	outputs []regions.Window // a part of windows
}

// RegionOwner returns the owner of the regions that the call may register and use.
func (c *Call) RegionOwner() regions.Owner {
	if c.Tenant == nil {
		return regions.Owner{}
	}
	return regions.Owner{Tenant: true, Name: c.Tenant.Name}
}

// maxSharedInputs is the maximum number of bytes in one request's shared-memory inputs. It equals the limit for
// other requests; without it, a small request could name any amount.
const maxSharedInputs = 2 << 30

// attach opens the regions that the request names and copies its inputs out of them, so that what is checked is
// what is used, whatever the client writes meanwhile. The bytes are charged before they are read.
func attach(c *Call) error {
	for i := range c.Shared.Inputs {
		if err := c.openWindow(c.Shared.Inputs[i].Range); err != nil {
			return err
		}
	}
	for i := range c.Shared.Outputs {
		if err := c.openWindow(c.Shared.Outputs[i].Range); err != nil {
			return err
		}
	}
	inputs := c.shared.windows[:len(c.Shared.Inputs)]
	c.shared.outputs = c.shared.windows[len(inputs):]
	left := int64(maxSharedInputs)
	for i := range inputs {
		w, in := &inputs[i], &c.Request.Inputs[c.Shared.Inputs[i].Index]
		if left -= w.Size(); left < 0 {
			return errs.New(errs.InputTooLarge, "the inputs of a request in shared memory have at most %d bytes together: send fewer at a time", int64(maxSharedInputs)).WithModel(c.Model)
		}
		if err := c.Account.Receive(w.Size()); err != nil {
			return err
		}
		buffer, err := c.path.gateway.Pool().Get(int(w.Size()))
		if err != nil {
			return err
		}
		in.Data = tensor.InBuffer(buffer, 0, w.Size())
		if err := w.Read(c.ctx, buffer.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func (c *Call) openWindow(of regions.Range) error {
	w, err := c.path.options.Regions.Open(c.RegionOwner(), of)
	if err == nil {
		c.shared.windows = append(c.shared.windows, w)
	}
	return err
}

// deposit copies the outputs for which the request named regions into those regions. The response retains their
// names, datatypes and shapes.
func (c *Call) deposit(r *infer.Response) error {
	for i := range c.Shared.Outputs {
		want, w := &c.Shared.Outputs[i], &c.shared.outputs[i]
		at := slices.IndexFunc(r.Outputs, func(t infer.Tensor) bool { return t.Name == want.Name })
		if at < 0 {
			continue
		}
		data, err := r.Outputs[at].Data.Bytes()
		if err != nil {
			return err
		}
		if int64(len(data)) > w.Size() {
			return errs.New(errs.RegionTooSmall, "shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results",
				want.Name, w.Size(), len(data)).WithModel(c.Model)
		}
		if err := w.Write(c.ctx, data); err != nil {
			return err
		}
		r.Outputs[at].Data.Release()
	}
	return nil
}

// closeWindows stops using the regions.
func (c *Call) closeWindows() {
	for i := range c.shared.windows {
		c.shared.windows[i].Close()
	}
	c.Shared, c.shared = Shared{}, shared{}
}
