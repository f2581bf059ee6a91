package fetch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
)

// rangeBytes is how much is fetched by one request.
const rangeBytes = 8 << 20

// span is a part of a file.
type span struct {
	file           int // its place in the list of files
	offset, length int64
}

// spans divides files into parts.
func spans(files []File) (all []span) {
	for i, file := range files {
		step := int64(rangeBytes)
		if file.Whole {
			step = max(file.Size, 1)
		}
		for offset := int64(0); offset < file.Size; offset += step {
			all = append(all, span{i, offset, min(step, file.Size-offset)})
		}
	}
	return all
}

// journal notes which spans are on the disk, so that a process that comes later
// goes on. It is a text of lines: the name of what is fetched, then the numbers
// of the spans. A line without an end is none. It is safe for concurrent use.
type journal struct {
	mu   sync.Mutex
	file *os.File // guarded by mu
}

// openJournal opens a journal of what is fetched, and returns the spans that it
// has. Those of another list of files are no use: then it is empty.
func openJournal(name string, files []File) (j *journal, have map[int]bool, err error) {
	title := nameOf(files)
	have = make(map[int]bool)
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	lines := strings.Split(string(text), "\n")
	fresh := lines[0] != title || len(lines) == 1
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if fresh {
		flags |= os.O_TRUNC
	} else {
		for _, line := range lines[1 : len(lines)-1] {
			if n, err := strconv.Atoi(line); err == nil {
				have[n] = true
			}
		}
	}
	file, err := os.OpenFile(name, flags, 0o600)
	if err != nil {
		return nil, nil, err
	}
	j = &journal{file: file}
	if fresh {
		err = j.line(title)
	} else if lines[len(lines)-1] != "" {
		err = j.line("") // ends the torn one
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return j, have, nil
}

// nameOf names a list of files.
func nameOf(files []File) string {
	total := sha256.New()
	for _, f := range files {
		fmt.Fprintf(total, "%q %q %d\n", f.Name, f.Tag, f.Size)
	}
	return hex.EncodeToString(total.Sum(nil))
}

// add notes that a span's bytes have been written.
func (j *journal) add(span int) error { return j.line(strconv.Itoa(span)) }

func (j *journal) line(text string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err := j.file.WriteString(text + "\n")
	return err
}

func (j *journal) close() error { return j.file.Close() }
