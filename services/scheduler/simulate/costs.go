package simulate

import (
	"bufio"
	"cmp"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/mono"
)

// Costs are the times that executions have taken, by model, kind of device, shape
// and batch size. What is drawn from them keeps their noise.
type Costs struct{ of map[device]*shapes }

// device is a model on a kind of device.
type device struct{ model, kind string }

// shapes are the costs of a model by the shape of its rows.
type shapes map[uint8]*sizes

// sizes are the costs of one shape by batch size.
type sizes struct {
	samples map[int64][]sample // in the order of their times
	// The line through all samples, by least squares: for sizes without any.
	at0, slope float64
	fitted     bool
}

// NewCosts returns costs without samples.
func NewCosts() *Costs { return &Costs{of: make(map[device]*shapes)} }

// sample is an execution: when it began, in a log, and what it took.
type sample struct {
	at   mono.Time
	took time.Duration
}

// Add adds the time of an execution.
func (c *Costs) Add(model, kind string, shape uint8, batchSize int64, took time.Duration) {
	c.add(device{model, kind}, shape, batchSize, sample{took: took})
}

func (c *Costs) add(d device, shape uint8, batchSize int64, one sample) {
	if c.of[d] == nil {
		c.of[d] = &shapes{}
	}
	s := (*c.of[d])[shape]
	if s == nil {
		s = &sizes{samples: make(map[int64][]sample)}
		(*c.of[d])[shape] = s
	}
	s.samples[batchSize] = append(s.samples[batchSize], one)
	s.fitted = false
}

// Kinds are the kinds of devices on which a model has costs, sorted.
func (c *Costs) Kinds(model string) []string {
	var kinds []string
	for d := range c.of {
		if d.model == model {
			kinds = append(kinds, d.kind)
		}
	}
	slices.Sort(kinds)
	return kinds
}

// ReadCosts reads a table: lines of model, kind of device, batch size, shape and
// time, such as
//
//	digits  cpu  8  -  1.3ms
//
// with blanks or tabs between them. The shape is how many elements a row has, or -
// where all rows are of one size. Of several lines of one batch size and shape each
// is as likely. Empty lines and those that begin with # say nothing.
func ReadCosts(in io.Reader) (*Costs, error) {
	c, lines := NewCosts(), bufio.NewScanner(in)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if err := c.addLine(fields); err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "line %d of the costs is not readable: want model, kind of device, batch size, elements of a row or -, and time, such as: digits cpu 8 - 1.3ms", n)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the costs cannot be read")
	}
	if len(c.of) == 0 {
		return nil, errs.New(errs.ConfigInvalid, "the costs are empty: want lines of model, kind of device, batch size, elements of a row or -, and time, such as: digits cpu 8 - 1.3ms")
	}
	return c, nil
}

func (c *Costs) addLine(fields []string) error {
	if len(fields) != 5 {
		return errs.New(errs.ConfigInvalid, "%d fields", len(fields))
	}
	size, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || size < 1 {
		return errs.New(errs.ConfigInvalid, "%q is no batch size", fields[2])
	}
	elements := uint64(0)
	if fields[3] != "-" {
		if elements, err = strconv.ParseUint(fields[3], 10, 64); err != nil {
			return errs.New(errs.ConfigInvalid, "%q is no number of elements", fields[3])
		}
	}
	took, err := time.ParseDuration(fields[4])
	if err != nil || took <= 0 {
		return errs.New(errs.ConfigInvalid, "%q is no time", fields[4])
	}
	c.Add(fields[0], fields[1], shapeOf(elements), size, took)
	return nil
}

// draw is how long an execution takes. Near is when it begins, so that one of the
// same time is drawn; 0 is any.
func (s *shapes) draw(rng *rand.Rand, near mono.Time, shape uint8, batchSize int64) time.Duration {
	one := (*s)[shape]
	if one == nil {
		one = s.nearest(shape)
	}
	return one.draw(rng, near, batchSize)
}

func (s *shapes) nearest(shape uint8) (best *sizes) {
	off := 1 << 8
	for _, known := range slices.Sorted(maps.Keys(*s)) {
		if d := max(known, shape) - min(known, shape); int(d) < off {
			best, off = (*s)[known], int(d)
		}
	}
	return best
}

// draw takes one of the samples of the batch size. Where there is none it takes
// one of the nearest size, moved by the line through all.
func (s *sizes) draw(rng *rand.Rand, near mono.Time, batchSize int64) time.Duration {
	if !s.fitted {
		s.fit()
	}
	if own := s.samples[batchSize]; len(own) > 0 {
		return pick(own, rng, near)
	}
	nearest, off := int64(0), int64(1)<<62
	for size := range s.samples {
		if d := max(size-batchSize, batchSize-size); d < off || d == off && size < nearest {
			nearest, off = size, d
		}
	}
	ratio := (s.at0 + s.slope*float64(batchSize)) / (s.at0 + s.slope*float64(nearest))
	return max(time.Duration(float64(pick(s.samples[nearest], rng, near))*ratio), 1)
}

// neighbors is from how many samples one is drawn that are near in time: a machine
// that stands still for a moment makes a few executions long that follow each
// other.
const neighbors = 4

func pick(list []sample, rng *rand.Rand, near mono.Time) time.Duration {
	if near != 0 && len(list) > neighbors {
		at, _ := slices.BinarySearchFunc(list, near, func(s sample, t mono.Time) int { return cmp.Compare(s.at, t) })
		first := min(max(at-neighbors/2, 0), len(list)-neighbors)
		list = list[first : first+neighbors]
	}
	return list[rng.IntN(len(list))].took
}

// fit finds the line.
func (s *sizes) fit() {
	s.fitted = true
	var n, x, t, xx, xt float64
	for _, size := range slices.Sorted(maps.Keys(s.samples)) {
		for _, one := range s.samples[size] {
			n, x, t = n+1, x+float64(size), t+float64(one.took)
			xx, xt = xx+float64(size*size), xt+float64(size)*float64(one.took)
		}
	}
	s.slope = 0
	if spread := n*xx - x*x; spread > 0 {
		s.slope = max((n*xt-x*t)/spread, 0)
	}
	s.at0 = (t - s.slope*x) / n
	if s.at0 <= 0 { // time cannot be less than none: then it grows with the size
		s.at0, s.slope = 0, xt/xx
	}
}

// sort brings samples into the order of their times.
func (c *Costs) sort() {
	for _, of := range c.of {
		for _, s := range *of {
			for _, list := range s.samples {
				byTime(list)
			}
		}
	}
}

func byTime(list []sample) {
	slices.SortStableFunc(list, func(a, b sample) int { return cmp.Compare(a.at, b.at) })
}
