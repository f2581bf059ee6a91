package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nereid-serving/nereid/libs/testkit/onnxmodel"
)

// BenchmarkFileChange replaces the file of a model that serves and measures, in
// milliseconds, how long it takes until an answer comes from the new one:
// until the load begins (found), the load, and from its end to that answer
// (swap). Under explicit control found is digesting the file and saying so to
// the worker; what polling takes beyond that it has waited.
func BenchmarkFileChange(b *testing.B) {
	for _, size := range []struct {
		name string
		side int
	}{{"1KB", 16}, {"100MB", 5120}} {
		dir := b.TempDir()
		contents := [2]string{halving(b, dir, size.side, 0.5), halving(b, dir, size.side, 0.25)}
		for mode, flags := range map[string][]string{
			"poll":     {"--model-control-mode=poll", "--repository-poll-secs=1"},
			"explicit": {"--model-control-mode=explicit", "--load-model=m"},
		} {
			b.Run(mode+"/"+size.name, func(b *testing.B) {
				c := &changes{b: b, side: size.side, file: filepath.Join(b.TempDir(), "models", "m", "1", "model.onnx")}
				if err := os.MkdirAll(filepath.Dir(c.file), 0o755); err != nil {
					b.Fatal(err)
				}
				c.replace(contents[0])
				c.server = start(b, filepath.Join(filepath.Dir(c.file), "../.."), flags...)
				for i := 1; b.Loop(); i++ {
					c.change(contents[i%2], mode == "explicit", []string{"0.5", "0.25"}[i%2])
				}
				for name, spent := range map[string]time.Duration{"found": c.found, "load": c.load, "swap": c.swap} {
					b.ReportMetric(float64(spent.Microseconds())/1e3/float64(b.N), name+"-ms")
				}
				c.kill()
			})
		}
	}
}

// halving writes a model that multiplies by a factor and has side × side
// weights, and returns its path.
func halving(b *testing.B, dir string, side int, factor float32) string {
	b.Helper()
	m := onnxmodel.Weights(1, side)
	raw := m.Graph.Initializers[0].Raw
	for i := range side {
		binary.LittleEndian.PutUint32(raw[(i*side+i)*4:], math.Float32bits(factor))
	}
	path := filepath.Join(dir, fmt.Sprint(factor, ".onnx"))
	m.WriteFile(b, path)
	return path
}

// changes is a server, the file that changes, and what its changes took.
type changes struct {
	*server
	b                 *testing.B
	file              string
	side              int
	found, load, swap time.Duration
}

// replace puts a link to a content in the file's place, at once, and makes it
// as new as a copy would be.
func (c *changes) replace(content string) {
	c.b.Helper()
	now := time.Now()
	if err := os.Chtimes(content, now, now); err != nil {
		c.b.Fatal(err)
	}
	draft := c.file + ".draft"
	if err := os.Link(content, draft); err != nil {
		c.b.Fatal(err)
	}
	if err := os.Rename(draft, c.file); err != nil {
		c.b.Fatal(err)
	}
}

func (c *changes) change(content string, ask bool, answer string) {
	c.b.Helper()
	before := len(c.loads())
	begun := time.Now()
	c.replace(content)
	if ask {
		if status, text := c.do(http.MethodPost, c.HTTP+"/v2/repository/models/m/load", ""); status != http.StatusOK {
			c.b.Fatalf("%d %s", status, text)
		}
	}
	for poll := time.NewTicker(time.Millisecond); !strings.Contains(c.ask(), answer); <-poll.C {
		continue
	}
	answered := time.Now()
	loads := c.loads()
	if len(loads) != before+1 {
		c.b.Fatalf("%d loads for one change", len(loads)-before)
	}
	last := loads[before]
	c.found += last.TS.Add(-last.took()).Sub(begun)
	c.load += last.took()
	c.swap += answered.Sub(last.TS)
}

// ask sends a row of ones and returns the answer.
func (c *changes) ask() string {
	c.b.Helper()
	ones := strings.Repeat(",1", c.side)[1:]
	status, text := c.do(http.MethodPost, c.HTTP+"/v2/models/m/infer",
		fmt.Sprintf(`{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,%d],"data":[%s]}]}`, c.side, ones))
	if status != http.StatusOK {
		c.b.Fatalf("%d %s", status, text)
	}
	_, data, _ := strings.Cut(text, `"data":[`)
	return strings.SplitN(data, ",", 2)[0]
}

// loading is a log entry of a load's end.
type loading struct {
	Msg  string
	TS   time.Time
	Took float64 // seconds
}

func (l loading) took() time.Duration { return time.Duration(l.Took * float64(time.Second)) }

func (c *changes) loads() (list []loading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.log {
		var l loading
		if json.Unmarshal([]byte(text), &l) == nil && l.Msg == "model loaded" {
			list = append(list, l)
		}
	}
	return list
}
