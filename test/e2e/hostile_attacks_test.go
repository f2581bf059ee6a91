package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"
)

// target is the server that is attacked.
type target struct{ http, grpc string }

// attack is one kind of hostile client. do is one turn of a client, which takes a moment; a
// turn ends early where the server does not let it go on.
type attack struct {
	clients int
	do      func(at target, client int)
}

const (
	inferMethod  = "/inference.GRPCInferenceService/ModelInfer"
	streamMethod = "/inference.GRPCInferenceService/ModelStreamInfer"
	liveMethod   = "/inference.GRPCInferenceService/ServerLive"
	// pause is how long a client that has sent what it can holds on to it.
	pause = 3 * time.Second
)

// attacks has every kind by its name.
func attacks() map[string]attack {
	zeros := zipped(make([]byte, 1<<20))
	text := func(s string) []byte { return zipped([]byte(s)) }
	id := bomb(text(`{"id":"`), text(strings.Repeat("x", 1<<20)), 60, text(`","inputs":[{"name":"x","datatype":"UINT8","shape":[1],"data":[1]}]}`))
	nested := bomb(text(`{"parameters":`), text(strings.Repeat(`{"a":`, 200<<10)), 50, nil)
	shape := bomb(text(`{"inputs":[{"name":"x","datatype":"UINT8","shape":[1`), text(strings.Repeat(",1", 512<<10)), 50, text(`],"data":[1]}]}`))
	texts := bomb(text(`{"inputs":[{"name":"x","datatype":"BYTES","shape":[16777217],"data":[""`), text(strings.Repeat(`,""`, 1<<18)), 64, text(`]}]}`))
	reals := []byte(`{"inputs":[{"name":"x","datatype":"FP64","shape":[1000000],"data":[` + strings.Repeat(`0.1,`, 1e6-1) + `0.1]}]}`)
	input := func(size int, parts ...[]byte) []byte { // the model bytes, and its input of which size bytes follow
		inner := append(field(1, []byte("x")), slices.Concat(parts...)...)
		return append(field(1, []byte("bytes")), append(protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.BytesType), uint64(len(inner)+size)), inner...)...)
	}
	start := func(number protowire.Number, size int) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.BytesType), uint64(size))
	}
	raw := bomb(zipped(start(7, 250<<20)), zeros, 250, nil)
	longID := bomb(zipped(start(3, 60<<20)), zeros, 60, nil)
	dims := bomb(zipped(input(100<<20, start(3, 100<<20))), zeros, 100, nil)
	packed := start(3, 100<<20)
	varints := bomb(zipped(input(100<<20, field(2, []byte("INT64")), start(5, len(packed)+100<<20), packed)), zeros, 100, nil)
	empties := bytes.Repeat(field(8, nil), 512<<10)
	strung := bomb(zipped(input(60*len(empties), field(2, []byte("BYTES")), start(5, 60*len(empties)))), zipped(empties), 60, nil)
	echoed := append(input(0, field(2, []byte("UINT8")), field(3, protowire.AppendVarint(nil, 1<<20))), field(7, make([]byte, 1<<20))...)
	return map[string]attack{
		"ids":     {4, func(at target, _ int) { post(at, "bytes", "gzip", id); rpc(at, inferMethod, longID) }},
		"nesting": {4, func(at target, _ int) { post(at, "bytes", "gzip", nested) }},
		"dims": {8, func(at target, i int) {
			either(i, func() { rpc(at, inferMethod, dims) }, func() { post(at, "bytes", "gzip", shape) })
		}},
		"varints": {8, func(at target, _ int) { rpc(at, inferMethod, varints) }},
		"strings": {8, func(at target, i int) {
			either(i, func() { rpc(at, inferMethod, strung) }, func() { post(at, "texts", "gzip", texts) })
		}},
		"numbers": {8, func(at target, _ int) { post(at, "reals", "", reals) }},
		"gzip":    {8, func(at target, _ int) { rpc(at, inferMethod, raw); rpc(at, liveMethod, raw) }},
		"headers": {64, func(at target, i int) { either(i, func() { endlessHead(at, i) }, func() { endlessHeaders(at) }) }},
		"names":   {16, func(at target, i int) { longNames(at, i) }},
		"explain": {16, func(at target, _ int) {
			pipeline(at, "GET /nereid/requests/"+fmt.Sprint(rand.Uint32(), "-1")+" HTTP/1.1\r\nHost: x\r\n\r\n", 200)
		}},
		"messages": {64, func(at target, i int) { unfinishedMessages(at, i) }},
		"frames":   {8, func(at target, i int) { smallFrames(at, i) }},
		"bodies":   {64, func(at target, i int) { slowBody(at, i) }},
		"readers":  {32, func(at target, i int) { either(i, func() { deafHTTP(at) }, func() { deafRPC(at, echoed) }) }},
		"connections": {64, func(at target, i int) {
			either(i, func() { crowd(at.http, i) }, func() { crowd(at.grpc, i) })
		}},
		"streams": {8, func(at target, i int) { manyStreams(at, i) }},
	}
}

func attackNames() []string { return slices.Sorted(maps.Keys(attacks())) }

func either(i int, one, other func()) {
	if i%2 == 0 {
		one()
	} else {
		other()
	}
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// bomb is a compressed text of n equal parts after the first, and a last, of which each is
// compressed already.
func bomb(first, part []byte, n int, last []byte) []byte {
	return slices.Concat(first, bytes.Repeat(part, n), last)
}

// field is a field of protobuf.
func field(number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// connect opens a connection, on which nothing takes longer than a turn may. It is nil where the
// server takes none.
func connect(address string) net.Conn {
	c, err := net.Dial("tcp", address)
	if err != nil {
		<-time.After(10 * time.Millisecond)
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(2 * pause))
	return c
}

// pipeline sends the same request n times, and reads the responses.
func pipeline(at target, request string, n int) {
	c := connect(at.http)
	if c == nil {
		return
	}
	defer c.Close()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	for range n {
		if _, err := io.WriteString(c, request); err != nil {
			return
		}
	}
}

// post sends an inference, and reads the response.
func post(at target, model, encoding string, body []byte) {
	r, err := http.NewRequest(http.MethodPost, "http://"+at.http+"/v2/models/"+model+"/infer", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Encoding", encoding)
	r.Header.Set("Accept-Encoding", "gzip")
	w, err := (&http.Client{Timeout: 2 * pause, Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, w.Body)
	_ = w.Body.Close()
}

// endlessHead sends all of a head but its end, of long fields or of many short ones.
func endlessHead(at target, i int) {
	for range 20 {
		c := connect(at.http)
		if c == nil {
			return
		}
		defer c.Close()
		var head strings.Builder
		head.WriteString("GET /v2 HTTP/1.1\r\nHost: x\r\n")
		for n := 0; head.Len() < 62<<10; n++ {
			if i%4 == 0 {
				fmt.Fprintf(&head, "%x:\n", n)
			} else {
				fmt.Fprintf(&head, "X-%d: %s\r\n", n, strings.Repeat("x", 8000))
			}
		}
		_, _ = io.WriteString(c, head.String())
	}
	<-time.After(pause)
}

// longNames asks for models, paths and regions whose names are as long as they may be.
func longNames(at target, i int) {
	name := strings.Repeat("x", 60<<10)
	switch i % 4 {
	case 0:
		pipeline(at, "GET /v2/models/"+name+"/config HTTP/1.1\r\nHost: x\r\n\r\n", 20)
	case 1:
		pipeline(at, "GET /v2/systemsharedmemory/region/"+name+"/status HTTP/1.1\r\nHost: x\r\n\r\n", 20)
	case 2:
		pipeline(at, "GET /"+name+" HTTP/1.1\r\nHost: x\r\n\r\n", 20)
	case 3:
		rpc(at, inferMethod, zipped(append(field(1, bytes.Repeat([]byte("m"), 1<<20)), field(2, bytes.Repeat([]byte("1"), 1<<20))...)))
	}
}

// slowBody announces a large body, sends as much of it as gets it more memory, and then single bytes.
func slowBody(at target, i int) {
	c := connect(at.http)
	if c == nil {
		return
	}
	defer c.Close()
	sent := []int{1<<10 + 1, 1<<20 + 1, 8<<20 + 1}[i%3]
	if _, err := c.Write(bytesRequest(60<<20, make([]byte, sent))); err != nil {
		return
	}
	for range 30 {
		<-time.After(pause / 30)
		if _, err := c.Write([]byte("x")); err != nil {
			return
		}
	}
}

// deafHTTP asks for a large response, and reads none of it.
func deafHTTP(at target) {
	c := connect(at.http)
	if c == nil {
		return
	}
	defer c.Close()
	_, _ = c.Write(bytesRequest(unreadBytes, make([]byte, unreadBytes)))
	<-time.After(pause)
}

// crowd holds connections, and opens and closes others.
func crowd(address string, i int) {
	for n := range 100 {
		c := connect(address)
		if c == nil {
			continue
		}
		if i%4 < 2 && n%2 == 0 {
			_ = c.Close()
		} else {
			defer c.Close()
		}
	}
	<-time.After(pause / 10)
}

// session is a connection with HTTP/2 whose client grants no window of its own accord.
type session struct {
	net.Conn
	*http2.Framer
	stream uint32
	block  bytes.Buffer
	fields *hpack.Encoder
}

// begin opens a session whose calls have so large a window for their responses. It reads what the
// server sends.
func begin(at target, window uint32) *session {
	c := connect(at.grpc)
	if c == nil {
		return nil
	}
	s := &session{Conn: c, Framer: http2.NewFramer(c, nil)}
	s.fields = hpack.NewEncoder(&s.block)
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	_ = s.WriteWindowUpdate(0, 1<<30)
	go func() { _, _ = io.Copy(io.Discard, c) }()
	return s
}

// open opens a call.
func (s *session) open(method string, extra ...hpack.HeaderField) error {
	s.stream = max(s.stream+2, 1) | 1
	s.block.Reset()
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "x"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "grpc-encoding", Value: "gzip"},
	}, extra...) {
		_ = s.fields.WriteField(h)
	}
	return s.WriteHeaders(http2.HeadersFrameParam{StreamID: s.stream, BlockFragment: s.block.Bytes(), EndHeaders: true})
}

// send sends part of the last call's messages in frames of so many bytes, whatever the window is.
func (s *session) send(b []byte, frame int, end bool) error {
	for len(b) > 0 {
		n := min(len(b), frame)
		if err := s.WriteData(s.stream, end && n == len(b), b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// prefixed is a message of gRPC, of which the client says that it has so many bytes.
func prefixed(b []byte, size int, compressed byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{compressed}, uint32(size)), b...)
}

// rpc makes a call with a compressed message, and waits a moment for the response.
func rpc(at target, method string, message []byte) {
	s := begin(at, 1<<20)
	if s == nil {
		return
	}
	defer s.Close()
	for range 4 {
		if s.open(method) != nil || s.send(prefixed(message, len(message), 1), 16<<10, true) != nil {
			return
		}
	}
	<-time.After(pause / 10)
}

// unfinishedMessages sends half of what it has announced, on many calls.
func unfinishedMessages(at target, i int) {
	s := begin(at, 1<<20)
	if s == nil {
		return
	}
	defer s.Close()
	method := []string{liveMethod, inferMethod, streamMethod, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"}[i%4]
	half := prefixed(make([]byte, 60<<10), 64<<20, 0)
	for range 16 { // gRPC has a window of 2 MiB for each call, and of 8 MiB for all
		if s.open(method) != nil || s.send(half, 16<<10, false) != nil {
			return
		}
	}
	for range 100 {
		if s.send(make([]byte, 16<<10), 16<<10, false) != nil {
			return
		}
		<-time.After(pause / 100)
	}
}

// endlessHeaders opens calls with large headers, and one whose headers do not end.
func endlessHeaders(at target) {
	s := begin(at, 1<<20)
	if s == nil {
		return
	}
	defer s.Close()
	for i := range 100 {
		if s.open(inferMethod, hpack.HeaderField{Name: fmt.Sprint("x-", i), Value: strings.Repeat("x", 12<<10), Sensitive: true}) != nil {
			return
		}
	}
	_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: s.stream + 2, BlockFragment: s.block.Bytes()})
	for range 100 {
		if s.WriteContinuation(s.stream+2, false, s.block.Bytes()) != nil {
			return
		}
		<-time.After(pause / 100)
	}
}

// smallFrames sends a message in frames of a byte, and frames that serve no call.
func smallFrames(at target, i int) {
	s := begin(at, 1<<20)
	if s == nil {
		return
	}
	defer s.Close()
	if s.open(inferMethod) != nil || s.send(prefixed(nil, 64<<20, 0), 1, false) != nil {
		return
	}
	for range 100_000 {
		var err error
		switch i % 4 {
		case 0:
			err = s.WriteData(s.stream, false, []byte{0})
		case 1:
			err = s.WritePing(false, [8]byte{})
		case 2:
			err = s.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 16 << 10})
		case 3:
			err = s.WriteWindowUpdate(s.stream, 1)
		}
		if err != nil {
			return
		}
	}
}

// deafRPC has large responses sent that it grants no window for.
func deafRPC(at target, message []byte) {
	s := begin(at, 0)
	if s == nil {
		return
	}
	defer s.Close()
	for i := range 8 {
		method := inferMethod
		if i%2 == 1 {
			method = streamMethod
		}
		if s.open(method) != nil || s.send(prefixed(message, len(message), 0), 16<<10, false) != nil {
			return
		}
	}
	<-time.After(pause)
}

// manyStreams opens as many calls as it can, and holds them or resets them at once.
func manyStreams(at target, i int) {
	s := begin(at, 1<<20)
	if s == nil {
		return
	}
	defer s.Close()
	message := prefixed(field(1, []byte("bytes")), 7, 0)
	for range 10_000 {
		if s.open(streamMethod) != nil || s.send(message, 16<<10, false) != nil {
			return
		}
		if i%2 == 0 && s.WriteRSTStream(s.stream, http2.ErrCodeCancel) != nil {
			return
		}
	}
	<-time.After(pause)
}
