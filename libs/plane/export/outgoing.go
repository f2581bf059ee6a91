package export

import (
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/plane/codec"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// outgoing is a response on its way, with its outputs as they are named.
type outgoing struct {
	response *infer.Response
	named    infer.Response
	size     int64 // bytes that the message carries
	parts    int   // outputs of which parts are missing
}

// share moves large outputs into memory that the gateway reads, where they are
// not there already and are no inputs in the gateway's own: memory of a backend,
// say. A copy costs a tenth of what bytes over the stream do.
func (d *destination) share(r *infer.Response) {
	arena, region := d.worker.config.Arena, d.reads()
	if arena == nil || region == nil {
		return
	}
	for i := range r.Outputs {
		data := &r.Outputs[i].Data
		if data.Length < tensor.MappedThreshold {
			continue
		}
		if _, shared := arena.Name(*data); shared {
			continue
		}
		if _, theirs := region.Find(*data); theirs {
			continue
		}
		bytes, err := data.Bytes()
		if err != nil {
			continue // sending it will fail, and say so
		}
		b, err := d.worker.config.Pool.Get(len(bytes))
		if err != nil {
			continue // there is another way
		}
		copy(b.Bytes(), bytes)
		data.Release()
		*data = tensor.InBuffer(b, 0, int64(len(bytes)))
	}
}

// reads returns the gateway's region if each reads the other's; else nil.
func (d *destination) reads() *shm.Region {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.opened {
		return nil
	}
	return d.region
}

// start sends a response as far as there is credit, after the parts of its
// large outputs. It overtakes those of other requests whose parts are still on
// their way. The caller holds mu.
func (d *destination) start(r *infer.Response) error {
	o := &outgoing{response: r, named: *r}
	o.named.Outputs = append([]infer.Tensor(nil), r.Outputs...)
	for i := range o.named.Outputs {
		o.named.Outputs[i].Data = d.name(o, o.named.Outputs[i].Data)
	}
	if o.parts > 0 || d.behind(r) {
		d.large = append(d.large, o)
	} else {
		d.flow.whole = append(d.flow.whole, o.item())
	}
	return d.flow.pump()
}

// behind reports whether an earlier response to the same request is on its way.
func (d *destination) behind(r *infer.Response) bool {
	return slices.ContainsFunc(d.large, func(o *outgoing) bool { return o.response.Work.Request == r.Work.Request })
}

func (o *outgoing) item() item {
	return item{named: &o.named, size: o.size, of: o.response}
}

// name returns how a response names an output: the bytes themselves, a slot
// that the gateway reads, a place in its own memory, or parts, which are sent
// first.
func (d *destination) name(o *outgoing, local tensor.Ref) tensor.Ref {
	if arena := d.worker.config.Arena; arena != nil && d.opened {
		if named, ok := arena.Name(local); ok {
			return named
		}
	}
	if d.region != nil {
		// An input that the model passes on, which the gateway keeps until the
		// request has its final response.
		if at, ok := d.region.Find(local); ok {
			return tensor.Ref{Place: tensor.Remote, Holder: d.gateway, Region: shm.Number, Slot: uint64(at), Length: local.Length}
		}
	}
	if local.Length <= partBytes {
		o.size += local.Length
		return local
	}
	d.parts++
	number, size := d.parts, uint64(local.Length)
	o.parts++
	d.flow.bulk = append(d.flow.bulk, &transfer{
		data: local.Retain(),
		part: func(w *codec.Writer, data tensor.Ref) error { return w.Part(number, size, data) },
		done: func() {
			o.parts--
			d.ripen()
		},
	})
	return tensor.Ref{Place: tensor.Remote, Generation: number, Length: local.Length}
}

// ripen lets those responses go whose parts have gone, and that are behind none
// of their request.
func (d *destination) ripen() {
	var left []*outgoing
	for _, o := range d.large {
		sameRequest := func(earlier *outgoing) bool { return earlier.response.Work.Request == o.response.Work.Request }
		if o.parts > 0 || slices.ContainsFunc(left, sameRequest) {
			left = append(left, o)
			continue
		}
		d.flow.whole = append(d.flow.whole, o.item())
	}
	d.large = left
}
