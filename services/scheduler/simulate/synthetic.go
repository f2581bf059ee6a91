package simulate

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	"github.com/nereid-serving/nereid/libs/mono"
	"github.com/nereid-serving/nereid/services/scheduler/core"
)

// Pattern is how requests arrive.
type Pattern string

// The patterns.
const (
	// Poisson requests arrive independently of each other.
	Poisson Pattern = "poisson"
	// Bursty alternates between pauses of 80 ms on average and bursts of 20 ms on average, in which requests arrive
	// as with Poisson at five times the rate.
	Bursty Pattern = "bursty"
	// Constant requests arrive at equal intervals.
	Constant Pattern = "constant"
)

// burstOn and burstOff are the mean durations of bursts and pauses.
const burstOn, burstOff = 20 * time.Millisecond, 80 * time.Millisecond

// Distribution is a set of numbers and their probabilities.
type Distribution []weighted

type weighted struct {
	value  int64
	weight float64
}

// ParseDistribution parses a number, or several with their weights, such as 1:0.9,8:0.1.
func ParseDistribution(text string) (Distribution, error) {
	var d Distribution
	for part := range strings.SplitSeq(text, ",") {
		number, weight, weighed := strings.Cut(part, ":")
		value, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		w := 1.0
		if err == nil && weighed {
			w, err = strconv.ParseFloat(strings.TrimSpace(weight), 64)
		}
		if err != nil || value < 1 || !(w > 0) || w > 1e12 {
			return nil, errs.New(errs.ConfigInvalid, "%q is no number of at least 1, or several with their weights, such as 1:0.9,8:0.1", text)
		}
		d = append(d, weighted{value, w})
	}
	return d, nil
}

// Max returns the largest number.
func (d Distribution) Max() (most int64) {
	for _, w := range d {
		most = max(most, w.value)
	}
	return most
}

func (d Distribution) draw(rng *rand.Rand) int64 {
	sum := 0.0
	for _, w := range d {
		sum += w.weight
	}
	at := rng.Float64() * sum
	for _, w := range d[:len(d)-1] {
		if at -= w.weight; at < 0 {
			return w.value
		}
	}
	return d[len(d)-1].value
}

// Synthetic is a randomly generated workload.
type Synthetic struct {
	Limits core.Config
	// Model is the model's name.
	Model  string
	Config *modelconfig.Config
	// Rate is in requests per second.
	Rate     float64
	Pattern  Pattern
	Requests int
	// Deadline is the time that each request has; 0 is none.
	Deadline   time.Duration
	BatchSizes Distribution
	// Elements are the sizes of variable dimensions.
	Elements Distribution
	// Each of the Devices is of the Kind and has Instances instances of the model.
	Devices, Instances int
	Kind               string
	Seed               uint64
}

// begin is when generated workloads start.
const begin = mono.Time(time.Second)

// Workload generates the workload.
func (s *Synthetic) Workload() *Workload {
	model := core.Model{Ref: infer.ModelRef{Name: s.Model, Version: 1, Generation: 1}, Config: s.Config}
	w := &Workload{
		Limits: s.Limits, Models: []core.Model{model}, Arrivals: make([]Arrival, s.Requests),
		Changes: []Change{
			{begin, core.Event{Kind: core.BecomeLeader, Epoch: 1, Until: begin}},
			{begin, core.Event{Kind: core.Configure, Model: &model}},
		},
	}
	w.pool(begin, s.Devices, func(int) int { return s.Instances }, func(int) string { return s.Kind })
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	times := s.times(rng)
	for i := range w.Arrivals {
		a := &w.Arrivals[i]
		*a = Arrival{At: times(), Origin: 1, BatchSize: s.BatchSizes.draw(rng)}
		if s.Deadline > 0 {
			a.Deadline = a.At.Add(s.Deadline)
		}
		a.Inputs = inputs(s.Config, a.BatchSize, s.Elements, rng)
	}
	return w
}

// times returns a function that returns successive arrival times.
func (s *Synthetic) times(rng *rand.Rand) func() mono.Time {
	next := s.Pattern.Times(s.Rate, rng)
	return func() mono.Time { return begin.Add(time.Duration(next() * float64(time.Second))) }
}

// Times returns a function that returns successive arrival times, in seconds, at the given average number of requests
// per second. An unknown pattern is treated as Poisson.
func (p Pattern) Times(rate float64, rng *rand.Rand) func() float64 {
	at := 0.0
	next := func() { at += rng.ExpFloat64() / rate }
	switch p {
	case Constant:
		next = func() { at += 1 / rate }
	case Bursty:
		share := float64(burstOn) / float64(burstOn+burstOff)
		ends := rng.ExpFloat64() * burstOn.Seconds()
		next = func() {
			at += rng.ExpFloat64() / rate * share
			for at > ends { // the rest continues after the pause
				pause := rng.ExpFloat64() * burstOff.Seconds()
				at += pause
				ends += pause + rng.ExpFloat64()*burstOn.Seconds()
			}
		}
	}
	return func() float64 {
		next()
		return at
	}
}

// inputs draws the shapes of a request's inputs, all of the same size; nil if they do not matter.
func inputs(c *modelconfig.Config, batchSize int64, elements Distribution, rng *rand.Rand) []infer.Tensor {
	var list []infer.Tensor
	variable, n := false, elements.draw(rng)
	for i := range c.Inputs {
		in := infer.Tensor{Name: c.Inputs[i].Name}
		if c.Batches() {
			in.Shape = append(in.Shape, batchSize)
		}
		for _, d := range c.Inputs[i].Dims {
			if d < 0 {
				variable, d = true, n
			}
			in.Shape = append(in.Shape, d)
		}
		list = append(list, in)
	}
	if !variable {
		return nil
	}
	return list
}
