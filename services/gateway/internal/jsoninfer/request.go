package jsoninfer

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Account is charged with the memory of a request.
type Account interface {
	// Receive charges n bytes, or returns an error.
	Receive(n int64) error
}

// Decoder reads requests. It may be used again, but not concurrently.
type Decoder struct {
	// Pool gives the memory of the tensors.
	Pool *tensor.Pool
	// MaxTensor is the most bytes of one tensor in JSON.
	MaxTensor int64
	// Account is charged with that memory before it is allocated, and the caller
	// returns it; nil has no bound.
	Account Account

	s       scanner
	model   *modelconfig.Config
	request *infer.Request
	env     *Envelope
	dims    []int64 // shapes of the request are cut from here
	strings []byte  // a BYTES tensor while its size is unknown
	seen    member
	entries int // inputs, outputs, parameters and dimensions so far
}

// MaxEntries bounds a request's inputs, outputs, parameters and dimensions
// together: one takes few bytes of JSON, many times as much in memory, and the
// checks to come compare names with each other.
const MaxEntries = 8192

// entry counts one more.
func (d *Decoder) entry() error {
	if d.entries++; d.entries > MaxEntries {
		return errs.New(errs.InputTooLarge, "request has more than %d inputs, outputs, parameters and dimensions", MaxEntries)
	}
	return nil
}

// member is a set of members seen in an object.
type member uint

const (
	memberID member = 1 << iota
	memberParameters
	memberInputs
	memberOutputs
	memberName
	memberDatatype
	memberShape
	memberData
	memberBinary
	memberRegion
	memberOther member = 0
)

// Decode reads the JSON body of a request for model into r and e. Nothing in
// r refers to body afterwards. On an error r may hold tensors all the same:
// the caller releases it in any case.
func (d *Decoder) Decode(body []byte, model *modelconfig.Config, r *infer.Request, e *Envelope) error {
	d.s = scanner{data: body, text: d.s.text}
	d.model, d.request, d.env, d.dims = model, r, e, nil
	defer func() {
		d.s.data, d.model, d.request, d.env, d.dims = nil, nil, nil, nil, nil
		if cap(d.s.text) > keepStrings {
			d.s.text = nil
		}
	}()
	if err := d.document(); err != nil {
		return err
	}
	return d.s.end()
}

func (d *Decoder) document() error {
	d.seen, d.entries = 0, 0
	d.s.byteOrderMark()
	switch d.s.peek() {
	case 0:
		if d.s.pos == len(d.s.data) {
			return d.s.fail(emptyDocument)
		}
	case '{':
		if err := d.s.object(d.top); err != nil {
			return err
		}
		if d.seen&memberInputs != 0 {
			return nil
		}
		return missing("inputs")
	}
	if err := d.s.skip(); err != nil {
		return err
	}
	return missing("inputs")
}

func missing(name string) error {
	return unable(name, "attempt to access non-existing object member '"+name+"'")
}

// CheckSyntax reports the first mistake of syntax in a JSON document, in the
// words of Decode and of Triton.
func CheckSyntax(document []byte) error {
	s := scanner{data: document}
	s.byteOrderMark()
	if s.peek() == 0 && s.pos == len(s.data) {
		return s.fail(emptyDocument)
	}
	if err := s.skip(); err != nil {
		return err
	}
	return s.end()
}

const emptyDocument = "The document is empty."

// first reports whether m has not been seen in the object that seen is for.
func first(seen *member, m member) bool {
	if m == memberOther || *seen&m != 0 {
		return false
	}
	*seen |= m
	return true
}

func (d *Decoder) top(key []byte) error {
	var m member
	switch string(key) {
	case "id":
		m = memberID
	case "parameters":
		m = memberParameters
	case "inputs":
		m = memberInputs
	case "outputs":
		m = memberOutputs
	}
	if !first(&d.seen, m) {
		return d.s.skip()
	}
	switch m {
	case memberID:
		id, err := d.text("id")
		d.request.ID = string(id)
		return err
	case memberParameters:
		return d.parameters()
	case memberInputs:
		return d.list("inputs", d.input)
	}
	return d.list("outputs", d.output)
}

func (d *Decoder) list(name string, element func() error) error {
	if d.s.peek() != '[' {
		return d.wrong(name, errNonArray)
	}
	return d.s.array(func() error {
		if err := d.entry(); err != nil {
			return err
		}
		return element()
	})
}

// wrong skips a value that is not of the kind that name needs.
func (d *Decoder) wrong(name, what string) error {
	if err := d.s.skip(); err != nil {
		return err
	}
	return unable(name, what)
}

// text reads the string value of the named member.
func (d *Decoder) text(name string) ([]byte, error) {
	if d.s.peek() != '"' {
		return nil, d.wrong(name, errNonString)
	}
	return d.s.str()
}

// unsigned reads the value of the named member; wrong is the error for a value
// that is no unsigned integer.
func (d *Decoder) unsigned(name, wrong string) (uint64, error) {
	switch d.s.peek() {
	case '"', '{', '[', 't', 'f', 'n':
		return 0, d.wrong(name, wrong)
	}
	var n number
	if err := d.s.number(&n); err != nil {
		return 0, err
	}
	u, ok := n.uint64()
	if !ok {
		return 0, unable(name, wrong)
	}
	return u, nil
}

// flag reads the boolean value of the named member.
func (d *Decoder) flag(name string) (bool, error) {
	v, ok, err := d.s.boolean()
	if err == nil && !ok {
		err = d.wrong(name, errNonBoolean)
	}
	return v, err
}

// known returns the name as a string: the model's own if it has one, so that
// nothing is allocated.
func known(list []modelconfig.IO, name []byte) string {
	for i := range list {
		if list[i].Name == string(name) {
			return list[i].Name
		}
	}
	return string(name)
}
