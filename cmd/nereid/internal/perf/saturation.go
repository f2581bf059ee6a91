package perf

import (
	"context"
	"time"

	"github.com/nereid-serving/nereid/libs/errs"
)

// Saturation is the highest rate at which a server holds an objective.
type Saturation struct {
	Objective Objective `json:"objective"`
	Arrivals  Arrivals  `json:"arrivals"`
	// Found is the rate in requests per second.
	Found Interval `json:"found"`
	// Peak is the rate of a closed loop, whatever the latency.
	Peak   float64 `json:"peak"`
	Trials []Trial `json:"trials"`
	// At is a run at the rate that was found.
	At *Measurement `json:"at"`
}

const (
	// probe is the length of each run that looks for the peak, and settle the time
	// before it counts.
	probe, settle = time.Second, 300 * time.Millisecond
	// gain is by how much a doubled concurrency must raise the rate for the next.
	gain = 1.05
	// maxProbe bounds the concurrency of a probe.
	maxProbe = 512
	// rough is the length of the first trials, while the interval's bounds differ by
	// more than the factor wide, and fine that of those after them.
	rough, fine = time.Second, 4 * time.Second
	roughTrials = 5
	// fewest trials are made whatever the budget is.
	fewest = 4
	wide   = 1.7
	// precise is the half width, relative to the rate, at which a search may end.
	precise = 0.008
	// lowest and highest bound the search, as shares of the peak.
	lowest, highest = 0.1, 1.3
)

// FindRate finds the highest rate at which the server holds an objective. It takes
// about as long as budget says, and less where the interval is narrow before. When
// ctx ends it returns what is known by then.
func (b *Bench) FindRate(ctx context.Context, o Objective, arrivals Arrivals, budget time.Duration) (*Saturation, error) {
	end := time.Now().Add(budget)
	s := &Saturation{Objective: o, Arrivals: arrivals}
	alone, err := b.runFor(ctx, Load{Concurrency: 1}, settle, probe)
	if err != nil {
		return nil, err
	}
	switch all := &alone.All; {
	case all.Answered == 0 && all.Failed == 0:
		return nil, errs.New(errs.PeerUnreachable, "no request was answered within %v", b.options.Grace)
	case all.Answered == 0:
		for kind, text := range all.Examples {
			return nil, errs.New(errs.ConfigInvalid, "every request fails: %s: %s", kind, text)
		}
	case time.Duration(all.Latency.P50.Value)*time.Microsecond > o.Limit:
		return nil, errs.New(errs.ConfigInvalid, "a single request takes %v already: the objective of %v cannot be held at any rate",
			time.Duration(all.Latency.P50.Value)*time.Microsecond, o.Limit)
	}
	if s.Peak, err = b.peak(ctx, alone.All.Rate.Value); err != nil {
		return nil, err
	}
	search := newSearch(o, s.Peak*lowest, s.Peak*highest)
	for ctx.Err() == nil && (len(search.trials) < fewest || time.Until(end) > 2*fine) {
		length := search.length()
		trial, err := b.try(ctx, o, Load{Rate: search.next(), Arrivals: arrivals}, length)
		if err != nil {
			return nil, err
		}
		search.observe(trial)
		if found := search.found(); len(search.trials) >= 8 && found.High-found.Low < 2*precise*found.Value {
			break
		}
	}
	s.Found, s.Trials = search.found(), search.trials
	s.At, err = b.runFor(ctx, Load{Rate: s.Found.Value, Arrivals: arrivals}, settle, fine)
	return s, err
}

// peak is the rate of a closed loop whose concurrency was doubled until that gained
// nothing.
func (b *Bench) peak(ctx context.Context, rate float64) (float64, error) {
	for concurrency := 2; concurrency <= maxProbe && ctx.Err() == nil; concurrency *= 2 {
		m, err := b.runFor(ctx, Load{Concurrency: concurrency}, settle, probe)
		if err != nil {
			return 0, err
		}
		before := rate
		rate = max(rate, m.All.Rate.Value)
		if rate < before*gain {
			break
		}
	}
	return rate, nil
}

// length is that of the next trial.
func (s *search) length() time.Duration {
	if found := s.found(); len(s.trials) < roughTrials && found.High > found.Low*wide {
		return rough
	}
	return fine
}

// try runs a load and judges it by an objective.
func (b *Bench) try(ctx context.Context, o Objective, load Load, length time.Duration) (Trial, error) {
	r, err := b.run(ctx, load, settle, length, true)
	if err != nil {
		return Trial{}, err
	}
	r.record.mu.Lock()
	defer r.record.mu.Unlock()
	return r.record.groups[len(r.classes)].trial(o, length), nil
}

// trial judges requests by an objective. Its rate is that of the requests that were
// sent: random arrivals differ from their mean by more than a search may be wrong.
func (g *group) trial(o Objective, length time.Duration) Trial {
	t := Trial{Quantile: float64(g.latency.all().ValueAtQuantile(100 * o.Quantile))}
	for i := range batches {
		t.Sent += g.answered[i] + g.failed[i]
		t.Failed += g.failed[i]
		for _, l := range g.each[i] {
			if l > o.Limit {
				t.Late++
			}
		}
	}
	t.Rate = float64(t.Sent) / length.Seconds()
	t.Bad, t.Error = badShare(o, &g.each, t.Failed)
	return t
}
