package stub

import (
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nereid-serving/nereid/libs/tensor"
)

// fuzzedName is the name of the memory that frames of the target bring along.
const fuzzedName = "nereid-fuzzed"

// openMemory is how much of that memory the process has open or mapped.
func openMemory(t *testing.T) (list []string) {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if to, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil && strings.Contains(to, fuzzedName) {
			list = append(list, "open: "+to)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, fuzzedName) {
			list = append(list, "mapped: "+line)
		}
	}
	return list
}

// The kinds of files that come with frames.
const (
	sealedFile = iota
	unsealedFile
	longFile
	directory
	fileKinds
)

// makeFile makes a file of a kind.
func makeFile(t *testing.T, kind byte) int {
	t.Helper()
	if kind%fileKinds == directory {
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	fd, err := unix.MemfdCreate(fuzzedName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	size := int64(4096)
	if kind%fileKinds == longFile {
		size = 1 << 20
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if kind%fileKinds != unsealedFile {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// frame is one that says how much it has.
func frame(header, body string, files int) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(header)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = binary.LittleEndian.AppendUint32(b, uint32(files))
	return append(append(b, header...), body...)
}

// FuzzFrames holds that frames of any bytes and files are read or end the connection,
// that what they say of tensors is within the memory that they have, and that neither
// memory nor files stay when the connection is closed.
func FuzzFrames(f *testing.F) {
	const out = `[[0,{"outs":[["OUT","INT8",[2],[2]],["BIG","INT8",[8],[1,0,8]]]},true]]`
	ran := frame(`{"t":"ran","batch":1,"responses":`+out+`,"files":[[1,4096]]}`, "ab", 1)
	f.Add(ran, []byte{sealedFile}, uint16(0))
	f.Add(ran, []byte{unsealedFile}, uint16(3))
	f.Add(ran, []byte{longFile}, uint16(20))
	f.Add(ran, []byte{directory}, uint16(0))
	f.Add(append(frame(`{"t":"release","files":[[1,4096],[2,1048576]]}`, "", 2), frame(`{"t":"drop","files":[1]}`, "", 0)...), []byte{sealedFile, longFile}, uint16(0))
	f.Add(append(frame(`{"t":"release","files":[[1,4096]]}`, "", 1), frame(`{"t":"ran","batch":1,"responses":`+out+`}`, "ab", 0)...), []byte{sealedFile}, uint16(9))
	f.Add(frame(`{"t":"release","slots":[[1,0]]}`, "", 0), []byte{}, uint16(0))
	f.Add(frame(`{"t":"log","text":"x"}`, strings.Repeat("b", 100), 0), []byte{sealedFile, sealedFile}, uint16(50))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), []byte{}, uint16(0))
	f.Add(frame(`{"t":"ran","batch":1}`, "", 0)[:20], []byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, data, kinds []byte, cut uint16) {
		if len(data) > 32<<10 || len(kinds) > 8 { // what the socket takes at once
			t.Skip()
		}
		pool := tensor.NewPool(0)
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewConnection(pair[0], pool)
		if err != nil {
			t.Fatal(err)
		}
		s := &Stub{connection: c}
		sendCut(t, pair[1], data, kinds, int(cut))
		readAll(t, s)
		s.Close()
		if list := openMemory(t); len(list) > 0 {
			t.Errorf("it is left:\n%s", strings.Join(list, "\n"))
		}
		if n := pool.Stats().InUse; n != 0 {
			t.Errorf("%d bytes of bodies are in use", n)
		}
	})
}

// sendCut sends data in two parts, the files with the second, and hangs up.
func sendCut(t *testing.T, socket int, data, kinds []byte, cut int) {
	t.Helper()
	cut = min(cut, max(len(data)-1, 0))
	var files []int
	for _, kind := range kinds {
		files = append(files, makeFile(t, kind))
	}
	if cut > 0 {
		if err := unix.Sendmsg(socket, data[:cut], nil, nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
	}
	if rest := data[cut:]; len(rest) > 0 {
		var control []byte
		if len(files) > 0 {
			control = unix.UnixRights(files...)
		}
		if err := unix.Sendmsg(socket, rest, control, nil, unix.MSG_NOSIGNAL); err != nil {
			t.Fatal(err)
		}
	}
	closeAll(append(files, socket))
}

// readAll reads all messages, and all bytes of their tensors.
func readAll(t *testing.T, s *Stub) {
	t.Helper()
	var m Message
	for {
		body, err := s.Receive(&m)
		if err != nil {
			return
		}
		sum := byte(0)
		for i := range m.Tensors {
			ref, err := s.Output(&m.Tensors[i], body)
			if err != nil {
				continue
			}
			data, err := ref.Bytes()
			if err != nil || int64(len(data)) != m.Tensors[i].Length {
				t.Errorf("a tensor of %d bytes has %d, %v", m.Tensors[i].Length, len(data), err)
			}
			for _, b := range data {
				sum += b
			}
			ref.Release()
		}
		runtime.KeepAlive(sum) // so that the bytes are read
		if body != nil {
			body.Release()
		}
	}
}
