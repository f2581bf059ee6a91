package jsoninfer

import (
	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/tensor"
	"github.com/nereid-serving/nereid/services/gateway/internal/memory"
)

// Decoder decodes requests. It may be reused, but not concurrently.
type Decoder struct {
	// Pool provides the memory of the tensors.
	Pool *tensor.Pool
	// MaxTensor is the maximum size in bytes of one tensor in JSON.
	MaxTensor int64
	// Account is charged for that memory, and for texts, before they are allocated; nil has no bound.
	Account *memory.Account

	s       scanner
	model   *modelconfig.Config
	request *infer.Request
	env     *Envelope
	dims    []int64 // shapes of the request are cut from here
	strings []byte  // a BYTES tensor while its size is unknown
	seen    member
	entries int   // inputs, outputs, parameters and dimensions so far
	credit  int64 // charged for entries and texts, and not used yet
}

// MaxEntries bounds a request's inputs, outputs, parameters and dimensions together: an entry takes few bytes
// of JSON and many times as much in memory, and later checks compare names pairwise.
const MaxEntries = 8192

// entryBytes is the maximum memory of an entry in addition to its texts, and grant how much is charged for
// entries and texts at a time.
const (
	entryBytes = 256
	grant      = 4 << 10
)

// entry counts one more entry.
func (d *Decoder) entry() error {
	if d.entries++; d.entries > MaxEntries {
		return errs.New(errs.InputTooLarge, "request has more than %d inputs, outputs, parameters and dimensions", MaxEntries)
	}
	return d.small(entryBytes)
}

// small charges n bytes of entries or texts.
func (d *Decoder) small(n int64) error {
	if d.credit -= n; d.credit >= 0 {
		return nil
	}
	more := max(-d.credit, grant)
	if err := d.Account.Retain(more); err != nil {
		return err
	}
	d.credit += more
	return nil
}

// keep returns a copy of a text that outlives the document.
func (d *Decoder) keep(text []byte) (string, error) {
	if err := d.small(int64(len(text))); err != nil {
		return "", err
	}
	return string(text), nil
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

// Decode decodes the JSON body of a request for model into r and e. Afterwards r has no references to body. On
// an error r may already hold tensors: the caller always releases it.
func (d *Decoder) Decode(body []byte, model *modelconfig.Config, r *infer.Request, e *Envelope) error {
	return d.decode(body, model, r, e, d.document)
}

// decode decodes a body by calling document, which reads from the scanner.
func (d *Decoder) decode(body []byte, model *modelconfig.Config, r *infer.Request, e *Envelope, document func() error) error {
	d.s = scanner{data: body, text: d.s.text, account: d.Account}
	d.model, d.request, d.env, d.dims, d.credit, d.seen, d.entries = model, r, e, nil, 0, 0, 0
	defer func() {
		d.s.data, d.model, d.request, d.env, d.dims = nil, nil, nil, nil, nil
		if cap(d.s.text) > keepStrings {
			d.s.leave(d.s.text)
			d.s.text = nil
		}
	}()
	return document()
}

func (d *Decoder) document() error {
	d.s.byteOrderMark()
	var err error
	switch d.s.peek() {
	case 0:
		return d.s.fail(emptyDocument)
	case '{':
		err = d.s.object(d.top)
	default:
		err = d.s.skip()
	}
	if err == nil {
		err = d.s.end()
	}
	if err == nil && d.seen&memberInputs == 0 {
		err = missing("inputs")
	}
	return err
}

func missing(name string) error {
	return unable(name, "attempt to access non-existing object member '"+name+"'")
}

// CheckSyntax reports the first syntax error in a JSON document, in the words of Decode and of Triton.
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

// first reports whether m is seen for the first time in the object that seen belongs to.
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
		if err == nil {
			d.request.ID, err = d.keep(id)
		}
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

// wrong skips a value whose kind is wrong for the named member, and returns the error.
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
// that is not an unsigned integer.
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

// known returns the name as a string: the model's own string if it has one, which avoids an allocation.
func (d *Decoder) known(list []modelconfig.IO, name []byte) (string, error) {
	for i := range list {
		if list[i].Name == string(name) {
			return list[i].Name, nil
		}
	}
	return d.keep(name)
}
