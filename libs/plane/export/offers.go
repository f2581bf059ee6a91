package export

import (
	"sync"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/shm"
	"github.com/nereid-serving/nereid/libs/tensor"
)

const (
	// inlineTensor is the size in bytes from which an input is named rather
	// than carried by the request's descriptor, and inlineTotal what one
	// descriptor carries at most.
	inlineTensor = 8 << 10
	inlineTotal  = 32 << 10
)

// Offers are the inputs of a gateway's requests that workers may read. They
// are kept from the submission to the request's final response, since until
// then a worker may read them. It is safe for concurrent use.
type Offers struct {
	arena *shm.Arena // nil: no memory is shared

	mu       sync.Mutex
	private  uint64                             // the last number of a slot that is not shared; guarded by mu
	slots    map[slot]*offered                  // guarded by mu
	requests map[infer.RequestID][]infer.Tensor // the inputs as named; guarded by mu
}

// offered is a buffer that workers may read. Several tensors may lie in it.
type offered struct {
	buffer *tensor.Buffer // with one reference
	uses   int            // by tensors
}

// slot is what tells the slots of one holder apart.
type slot struct{ region, start, generation uint64 }

func slotOf(r tensor.Ref) slot { return slot{r.Region, r.Slot, r.Generation} }

// NewOffers makes offers of slots in arena; with nil all are of memory that is
// not shared.
func NewOffers(arena *shm.Arena) *Offers {
	return &Offers{arena: arena, slots: make(map[slot]*offered), requests: make(map[infer.RequestID][]infer.Tensor)}
}

// Offer returns what to submit in the place of r: r itself, or a copy in which
// large inputs are named instead of held, which may be submitted again after
// its Work was changed. The caller keeps r's own references as long as it
// likes, and calls [Offers.Forget] when the request's final response has come.
func (o *Offers) Offer(r *infer.Request) *infer.Request {
	if !anyNamed(r.Inputs) {
		return r
	}
	named := *r
	named.Inputs = append([]infer.Tensor(nil), r.Inputs...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if earlier := o.requests[r.Work.Request]; earlier != nil {
		named.Inputs = earlier
		return &named
	}
	carried := int64(0)
	for i := range named.Inputs {
		data := &named.Inputs[i].Data
		if inline(*data, carried) {
			carried += data.Length
			continue
		}
		buffer := data.Buffer
		*data = o.name(*data)
		data.Place, data.Holder = tensor.Remote, r.Work.Request.Origin
		o.use(slotOf(*data), buffer)
	}
	o.requests[r.Work.Request] = named.Inputs
	return &named
}

// use keeps a slot's buffer for one more tensor. The caller holds mu.
func (o *Offers) use(s slot, b *tensor.Buffer) {
	if at := o.slots[s]; at != nil {
		at.uses++
		return
	}
	o.slots[s] = &offered{b.Retain(), 1}
}

func anyNamed(inputs []infer.Tensor) bool {
	carried := int64(0)
	for i := range inputs {
		if !inline(inputs[i].Data, carried) {
			return true
		}
		carried += inputs[i].Data.Length
	}
	return false
}

func inline(data tensor.Ref, carried int64) bool {
	return data.Length < inlineTensor && carried+data.Length <= inlineTotal
}

// name makes the name of a tensor. Several tensors of a request may lie in one
// slot, and one may be offered by several requests: a name of its own tells
// those apart that are not in the arena. The caller holds mu.
func (o *Offers) name(data tensor.Ref) tensor.Ref {
	if o.arena != nil {
		if named, ok := o.arena.Name(data); ok {
			return named
		}
	}
	o.private++
	return tensor.Ref{Generation: o.private, Offset: data.Offset, Length: data.Length}
}

// Forget releases what was offered of a request, if anything was.
func (o *Offers) Forget(id infer.RequestID) {
	var over []*tensor.Buffer
	o.mu.Lock()
	for _, in := range o.requests[id] {
		if in.Data.Place != tensor.Remote {
			continue
		}
		s := slotOf(in.Data)
		at := o.slots[s]
		if at.uses--; at.uses == 0 {
			delete(o.slots, s)
			over = append(over, at.buffer)
		}
	}
	delete(o.requests, id)
	o.mu.Unlock()
	for _, b := range over {
		b.Release()
	}
}

// Len returns how many requests have inputs offered.
func (o *Offers) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.requests)
}

// find returns the bytes that a worker names, with a reference on them that is
// the caller's. It is false if they are offered no more.
func (o *Offers) find(named tensor.Ref) (tensor.Ref, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.slots[slotOf(named)]
	if at == nil || named.Offset < 0 || named.Length < 0 || named.Offset > int64(at.buffer.Len())-named.Length {
		return tensor.Ref{}, false
	}
	return tensor.InBuffer(at.buffer.Retain(), named.Offset, named.Length), true
}

// own returns the bytes of an input of a request, or a part of one, that a
// worker answers with: n bytes at a place in the arena, with a reference on them
// that is the caller's. It is false if they are offered no more, or are not the
// request's.
func (o *Offers) own(id infer.RequestID, at uint64, n int64) (tensor.Ref, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, in := range o.requests[id] {
		r := in.Data
		first := r.Slot + uint64(r.Offset)
		if r.Place != tensor.Remote || r.Region != shm.Number || at < first || at-first > uint64(r.Length) || n < 0 || uint64(n) > uint64(r.Length)-(at-first) {
			continue
		}
		return tensor.InBuffer(o.slots[slotOf(r)].buffer.Retain(), int64(at-r.Slot), n), true
	}
	return tensor.Ref{}, false
}
