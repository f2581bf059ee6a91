package main

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/perf"
	"github.com/nereid-serving/nereid/libs/errs"
)

// loads are those of the sweep; without any it is a closed loop of one client.
func (p *performance) loads() ([]perf.Load, error) {
	var all []perf.Load
	concurrency, err := loadRange("--concurrency", p.Concurrency)
	if err != nil {
		return nil, err
	}
	for _, n := range concurrency {
		if n != float64(int(n)) || n > 1e5 {
			return nil, errs.New(errs.ConfigInvalid, "--concurrency=%s: want whole numbers up to 100000", p.Concurrency)
		}
		all = append(all, perf.Load{Concurrency: int(n)})
	}
	rates, err := loadRange("--rate", p.Rate)
	if err != nil {
		return nil, err
	}
	switch p.Arrivals {
	case "", perf.Constant, perf.Poisson, perf.Bursty, perf.Ramp:
	default:
		return nil, errs.New(errs.ConfigInvalid, "--arrivals=%s: want poisson, constant, bursty or ramp", p.Arrivals)
	}
	for _, rate := range rates {
		all = append(all, perf.Load{Rate: rate, Arrivals: cmp.Or(p.Arrivals, perf.Poisson)})
	}
	if len(all) == 0 {
		all = append(all, perf.Load{Concurrency: 1})
	}
	return all, nil
}

// loadRange reads 1,4,16, or perf_analyzer's START:END:STEP.
func loadRange(flag, text string) ([]float64, error) {
	if text == "" {
		return nil, nil
	}
	invalid := errs.New(errs.ConfigInvalid, "%s=%s: want numbers above 0 with commas between them, or START:END:STEP", flag, text)
	read := func(text string) (float64, error) {
		f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil || !(f > 0) || f > 1e7 {
			return 0, invalid
		}
		return f, nil
	}
	var list []float64
	if !strings.Contains(text, ":") {
		for part := range strings.SplitSeq(text, ",") {
			f, err := read(part)
			if err != nil {
				return nil, err
			}
			list = append(list, f)
		}
		return list, nil
	}
	bounds := []float64{0, 0, 1}
	for i, part := range strings.SplitN(text, ":", 3) {
		var err error
		if bounds[i], err = read(part); err != nil {
			return nil, err
		}
	}
	if (bounds[1]-bounds[0])/bounds[2] > 1000 {
		return nil, errs.New(errs.ConfigInvalid, "%s=%s has more than 1000 steps", flag, text)
	}
	for f := bounds[0]; f <= bounds[1]; f += bounds[2] {
		list = append(list, f)
	}
	if len(list) == 0 {
		return nil, invalid
	}
	return list, nil
}

// objective is what --slo says.
func (p *performance) objective() (o perf.Objective, ok bool, err error) {
	if p.Objective == "" {
		return o, false, nil
	}
	name, limit, _ := strings.Cut(p.Objective, "=")
	quantile, err := strconv.ParseFloat(strings.TrimPrefix(name, "p"), 64)
	if err != nil || !strings.HasPrefix(name, "p") || !(quantile > 0 && quantile < 100) {
		return o, false, errs.New(errs.ConfigInvalid, "--slo=%s: want a percentile and its limit, such as p99=20ms", p.Objective)
	}
	o.Quantile = quantile / 100
	if o.Limit, err = time.ParseDuration(limit); err != nil || o.Limit <= 0 {
		return o, false, errs.New(errs.ConfigInvalid, "--slo=%s: want a percentile and its limit, such as p99=20ms", p.Objective)
	}
	if o.Errors, err = perf.ParseShare(p.Errors); err != nil {
		return o, false, errs.New(errs.ConfigInvalid, "--errors=%s: want a share, such as 0.1%%", p.Errors)
	}
	return o, true, nil
}

func (p *performance) gates() (list []perf.Gate, err error) {
	for _, text := range p.FailIf {
		g, err := perf.ParseGate(text)
		if err != nil {
			return nil, err
		}
		list = append(list, g)
	}
	return list, nil
}
