package stub

import (
	"fmt"
	"math"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/tensor"
)

// Type is the type of a message from a stub.
type Type string

// The types of messages from a stub.
const (
	Started   Type = "started"
	Completed Type = "completed"
	Failed    Type = "failed"
	Finalized Type = "finalized"
	Reply     Type = "reply"
	Ran       Type = "ran"
	Respond   Type = "respond"
	Call      Type = "call"
	HangUp    Type = "hang_up"
	Room      Type = "room"
	Log       Type = "log"
	Family    Type = "family"
	Metric    Type = "metric"
	Sample    Type = "sample"
	Value     Type = "value"
	Control   Type = "control"
	Release   Type = "release"
	Drop      Type = "drop"
)

// What a message may list.
const (
	maxRank     = 64
	maxPosition = math.MaxInt32
)

// Message is a message from a stub. Its bytes and lists belong to the message that is
// read next into the same value, but for strings.
type Message struct {
	Type Type

	Batch   uint64
	Request int // position; -1 if there is none
	Final   bool
	// Responses are those of Ran and Respond; their tensors are in Tensors.
	Responses []Response
	Tensors   []Tensor
	// Again are positions of requests that are to run again.
	Again []int
	// Error is for all requests without an end, or what failed of a reply.
	Error     Error
	Traceback string
	Text      string
	Config    string

	// ID is what a reply answers, or what is to be replied to.
	ID uint64
	// Asks and Async are what a model has: is_ready, and a coroutine.
	Asks, Async bool

	Level, File string
	Line        uint64

	// Call is the number of a call. Asked is what it asks for, but for its inputs, which
	// are in Tensors.
	Call  uint64
	Asked *infer.Call
	// N is how many results of the call were taken.
	N int
	// Contents are files in the body that a model is loaded with.
	Contents   []Content
	Dependents bool

	Family, Metric uint64
	Name, Kind, Op string
	Labels         []infer.Parameter
	Buckets        []float64
	Number         float64 // the value of a sample
	Flag           bool    // the value of a reply, where it is one
	Slots          []Slot
	Files          []File
	Dropped        []uint64
	shape          tensor.Shape // of all tensors
}

// Response is one response of a message.
type Response struct {
	Position int
	Final    bool
	// None says that there is no response: the request only ends.
	None bool
	// From and To are where its tensors are in the message's.
	From, To   int
	Parameters []infer.Parameter
	Error      Error
}

// Error is an error of a model; the zero value is none.
type Error struct{ Code, Text string }

// Tensor is a tensor of a message.
type Tensor struct {
	Name     []byte
	Datatype tensor.Datatype
	Shape    tensor.Shape
	// InBody says that it is in the body at the offset; else it is in the file.
	InBody         bool
	File           uint64
	Offset, Length int64
}

// Slot is a slot of a file.
type Slot struct {
	File   uint64
	Offset int64
}

// Content is a file of a model, in the body.
type Content struct {
	Path string
	Size int64
}

// File is a file that comes with a message.
type File struct {
	Number uint64
	Size   int64
}

// Parse reads a header. Tensors that are in the body are given their places in it;
// that they are within it is checked by whoever has the body.
func (m *Message) Parse(header []byte) error {
	*m = Message{
		Request: -1, Responses: m.Responses[:0], Tensors: m.Tensors[:0], Again: m.Again[:0], Slots: m.Slots[:0],
		Files: m.Files[:0], Dropped: m.Dropped[:0], shape: m.shape[:0],
	}
	c := cursor{data: header}
	c.expect('{')
	for n := 0; c.more(n, '}'); n++ {
		m.member(&c, c.key())
	}
	if c.peek() != 0 || m.Type == "" && c.err == nil {
		c.fail()
	}
	if c.err == nil && m.Type == Respond {
		m.adopt()
	}
	return c.err
}

// adopt completes the response of a sender by the message's own members.
func (m *Message) adopt() {
	if len(m.Responses) == 0 {
		m.Responses = append(m.Responses, Response{None: true})
	}
	m.Responses[0].Position, m.Responses[0].Final = m.Request, m.Final
}

func (m *Message) member(c *cursor, key []byte) {
	switch string(key) {
	case "t":
		m.Type = typeOf(c.text())
	case "batch":
		m.Batch = c.uint(math.MaxUint64)
	case "request":
		m.Request = int(c.uint(maxPosition)) //nolint:gosec // bounded
	case "final":
		m.Final = c.bool()
	case "responses":
		m.responses(c)
	case "response":
		m.Responses = append(m.Responses[:0], m.response(c))
	case "again":
		c.expect('[')
		for n := 0; c.more(n, ']'); n++ {
			m.Again = append(m.Again, int(c.uint(maxPosition))) //nolint:gosec // bounded
		}
	case "error":
		m.Error = errorOf(c)
	case "files":
		m.files(c)
	case "slots":
		m.slots(c)
	case "id":
		if c.peek() == '"' {
			m.asked().ID = string(c.text())
			return
		}
		m.ID = c.uint(math.MaxUint64)
	case "call":
		m.Call = c.uint(math.MaxUint64)
	default:
		if !m.ofCall(c, key) {
			m.rare(c, key)
		}
	}
}

// asked is what a call asks for. It takes one response unless it says otherwise.
func (m *Message) asked() *infer.Call {
	if m.Asked == nil {
		m.Asked = &infer.Call{Single: true}
	}
	return m.Asked
}

// maxTimeout bounds the timeout of a call, in microseconds.
const maxTimeout = math.MaxInt64 / 1000

// ofCall reads the members that calls alone have. It is false for others.
func (m *Message) ofCall(c *cursor, key []byte) bool {
	switch string(key) {
	case "contents":
		m.contents(c)
	case "dependents":
		m.Dependents = c.bool()
	case "model":
		m.asked().Model = string(c.text())
	case "version":
		m.asked().Version = string(c.text())
	case "decoupled":
		m.asked().Single = !c.bool()
	case "corr":
		if c.peek() == '"' {
			m.asked().Sequence.Key = string(c.text())
		} else {
			m.asked().Sequence.ID = c.uint(math.MaxUint64)
		}
	case "flags":
		flags := c.uint(math.MaxInt32)
		m.asked().Sequence.Start, m.asked().Sequence.End = flags&1 != 0, flags&2 != 0
	case "timeout":
		m.asked().Timeout = time.Duration(c.uint(maxTimeout)) * time.Microsecond //nolint:gosec // bounded
	case "priority":
		m.asked().Priority = c.uint(math.MaxUint64)
	case "params":
		m.asked().Parameters = parameters(c)
	case "trace":
		m.asked().Trace = string(c.text())
	case "outs":
		c.expect('[')
		for n := 0; c.more(n, ']'); n++ {
			m.asked().Outputs = append(m.asked().Outputs, infer.Output{Name: string(c.text())})
		}
	case "ins":
		c.expect('[')
		for n := 0; c.more(n, ']'); n++ {
			m.tensor(c)
		}
	default:
		return false
	}
	return true
}

// rare reads the members of messages that do not come with each batch.
func (m *Message) rare(c *cursor, key []byte) {
	switch string(key) {
	case "traceback":
		m.Traceback = string(c.text())
	case "text":
		m.Text = string(c.text())
	case "config":
		m.Config = string(c.text())
	case "asks":
		m.Asks = c.bool()
	case "async":
		m.Async = c.bool()
	case "level":
		m.Level = string(c.text())
	case "file":
		m.File = string(c.text())
	case "n":
		m.N = int(c.uint(maxPosition)) //nolint:gosec // bounded
	case "line":
		m.Line = c.uint(math.MaxInt32)
	case "family":
		m.Family = c.uint(math.MaxUint64)
	case "metric":
		m.Metric = c.uint(math.MaxUint64)
	case "name":
		m.Name = string(c.text())
	case "kind":
		m.Kind = string(c.text())
	case "op":
		m.Op = string(c.text())
	case "labels":
		m.Labels = parameters(c)
	case "buckets":
		c.expect('[')
		for n := 0; c.more(n, ']'); n++ {
			m.Buckets = append(m.Buckets, c.float())
		}
	case "value":
		m.value(c)
	default:
		c.skip(0)
	}
}

// value reads a sample's or a reply's.
func (m *Message) value(c *cursor) {
	switch c.peek() {
	case 't', 'f':
		m.Flag = c.bool()
	case '"', '{', '[', 'n':
		c.skip(0)
	default:
		m.Number = c.float()
	}
}

// typeOf finds the type without a copy of its name.
func typeOf(name []byte) Type {
	for _, t := range [...]Type{Ran, Respond, Release, Log, Sample, Value, Metric, Family, Call, HangUp, Room, Control, Drop, Reply, Started, Completed, Failed, Finalized} {
		if string(name) == string(t) {
			return t
		}
	}
	return ""
}

func (m *Message) responses(c *cursor) {
	c.expect('[')
	for n := 0; c.more(n, ']'); n++ {
		c.expect('[')
		position := c.uint(maxPosition)
		c.expect(',')
		r := m.response(c)
		c.expect(',')
		r.Position, r.Final = int(position), c.bool() //nolint:gosec // bounded
		c.expect(']')
		m.Responses = append(m.Responses, r)
	}
}

func (m *Message) response(c *cursor) (r Response) {
	if c.peek() == 'n' {
		c.word("null")
		return Response{None: true}
	}
	r.From = len(m.Tensors)
	c.expect('{')
	for n := 0; c.more(n, '}'); n++ {
		switch key := c.key(); string(key) {
		case "outs":
			c.expect('[')
			for k := 0; c.more(k, ']'); k++ {
				m.tensor(c)
			}
		case "params":
			r.Parameters = parameters(c)
		case "error":
			r.Error = errorOf(c)
		default:
			c.skip(0)
		}
	}
	r.To = len(m.Tensors)
	return r
}

// tensor reads [name, datatype, shape, place].
func (m *Message) tensor(c *cursor) {
	c.expect('[')
	t := Tensor{Name: c.text()}
	c.expect(',')
	t.Datatype = datatypeOf(c.text())
	c.expect(',')
	start := len(m.shape)
	c.expect('[')
	for n := 0; c.more(n, ']'); n++ {
		m.shape = append(m.shape, c.size())
	}
	t.Shape = m.shape[start:len(m.shape):len(m.shape)]
	c.expect(',')
	c.expect('[')
	t.Length = c.size()
	if t.InBody = c.peek() == ']'; !t.InBody {
		t.File = uint64(t.Length) //nolint:gosec // not negative
		c.expect(',')
		t.Offset = c.size()
		c.expect(',')
		t.Length = c.size()
	}
	c.expect(']')
	c.expect(']')
	if c.err == nil && (!t.Datatype.Valid() || len(t.Shape) > maxRank) {
		c.err = fmt.Errorf("a tensor of the stub has a datatype that there is not, or %d dimensions", len(t.Shape))
		c.at = len(c.data)
		return
	}
	m.Tensors = append(m.Tensors, t)
}

func datatypeOf(name []byte) tensor.Datatype {
	for d := tensor.Bool; d.Valid(); d++ {
		if string(name) == d.String() {
			return d
		}
	}
	return tensor.Invalid
}

func errorOf(c *cursor) (e Error) {
	c.expect('[')
	e.Code = string(c.text())
	c.expect(',')
	e.Text = string(c.text())
	c.expect(']')
	return e
}

func parameters(c *cursor) (list []infer.Parameter) {
	c.expect('{')
	for n := 0; c.more(n, '}'); n++ {
		key := string(c.key())
		list = append(list, infer.Parameter{Key: key, Value: c.value()})
	}
	return list
}

// files reads the files of a message, or the numbers of those that are dropped.
func (m *Message) files(c *cursor) {
	c.expect('[')
	for n := 0; c.more(n, ']'); n++ {
		if c.peek() != '[' {
			m.Dropped = append(m.Dropped, c.uint(math.MaxUint64))
			continue
		}
		c.expect('[')
		f := File{Number: c.uint(math.MaxUint64)}
		c.expect(',')
		f.Size = c.size()
		c.expect(']')
		m.Files = append(m.Files, f)
	}
}

func (m *Message) contents(c *cursor) {
	c.expect('[')
	for n := 0; c.more(n, ']'); n++ {
		c.expect('[')
		f := Content{Path: string(c.text())}
		c.expect(',')
		f.Size = c.size()
		c.expect(']')
		m.Contents = append(m.Contents, f)
	}
}

func (m *Message) slots(c *cursor) {
	c.expect('[')
	for n := 0; c.more(n, ']'); n++ {
		c.expect('[')
		s := Slot{File: c.uint(math.MaxUint64)}
		c.expect(',')
		s.Offset = c.size()
		c.expect(']')
		m.Slots = append(m.Slots, s)
	}
}

// placeTensors gives the tensors in the body their places, and checks them.
func (m *Message) placeTensors(bodyBytes int64) error {
	at := int64(0)
	for i := range m.Tensors {
		t := &m.Tensors[i]
		if !t.InBody {
			continue
		}
		if t.Length > bodyBytes-at {
			return fmt.Errorf("the tensors of a message of the stub have more than its body of %d bytes", bodyBytes)
		}
		t.Offset = at
		at += t.Length
	}
	return nil
}
