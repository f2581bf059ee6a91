package cache

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"math"
	"slices"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Key identifies a response by everything that it depends on. It is a SHA-256 hash, so that not even a client
// that tries can find two requests with the same key, which would get each other's responses.
type Key [sha256.Size]byte

// KeyOf returns the key of a checked request for a model's content: see [core.Version.Content]. It covers the
// tenant, the content, the inputs in any order, the requested outputs, and the parameters that reach the model,
// but not the request's ID, priority and times. It returns false for a request whose inputs cannot be read
// here, for a request of a sequence, and for unknown content.
func KeyOf(content string, r *infer.Request) (key Key, ok bool) {
	if content == "" || r.Sequence != (infer.Sequence{}) {
		return key, false
	}
	k := keyWriter{hash: sha256.New()}
	k.text(r.Tenant)
	k.text(r.Model.Namespace)
	k.text(r.Model.Name)
	k.number(uint64(r.Model.Version))
	k.text(content)
	if !k.inputs(r.Inputs) {
		return key, false
	}
	k.number(uint64(len(r.Outputs)))
	for i := range r.Outputs {
		k.text(r.Outputs[i].Name)
	}
	k.parameters(r.Parameters)
	k.hash.Sum(key[:0])
	return key, true
}

// keyWriter writes each part after its length, so that no two different lists of parts are written alike.
type keyWriter struct {
	hash    hash.Hash
	scratch [binary.MaxVarintLen64]byte
}

func (k *keyWriter) number(n uint64) {
	k.hash.Write(k.scratch[:binary.PutUvarint(k.scratch[:], n)])
}

func (k *keyWriter) text(s string) {
	k.number(uint64(len(s)))
	_, _ = io.WriteString(k.hash, s) // a hash never returns an error
}

// inputs reports whether all inputs could be read.
func (k *keyWriter) inputs(list []infer.Tensor) bool {
	k.number(uint64(len(list)))
	for _, i := range ordered(len(list), func(a, b int) int { return cmp.Compare(list[a].Name, list[b].Name) }) {
		in := &list[i]
		if in.Data.Place != tensor.Local && in.Data.Place != tensor.Nowhere {
			return false
		}
		data, err := in.Data.Bytes()
		if err != nil {
			return false
		}
		k.text(in.Name)
		k.text(in.Datatype.String())
		k.number(uint64(len(in.Shape)))
		for _, d := range in.Shape {
			k.number(uint64(d))
		}
		k.number(uint64(len(data)))
		k.hash.Write(data)
	}
	return true
}

func (k *keyWriter) parameters(list []infer.Parameter) {
	k.number(uint64(len(list)))
	for _, i := range ordered(len(list), func(a, b int) int { return cmp.Compare(list[a].Key, list[b].Key) }) {
		k.text(list[i].Key)
		switch v := list[i].Value.(type) {
		case bool:
			k.text("bool")
			if v {
				k.number(1)
			} else {
				k.number(0)
			}
		case int64:
			k.text("int")
			k.number(uint64(v))
		case float64:
			k.text("float")
			k.number(math.Float64bits(v))
		case string:
			k.text("text")
			k.text(v)
		}
	}
}

// ordered returns the numbers below n, ordered by compare.
func ordered(n int, compare func(a, b int) int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	slices.SortStableFunc(list, compare)
	return list
}
