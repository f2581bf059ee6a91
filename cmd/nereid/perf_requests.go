package main

import (
	"context"
	"os"
	"time"

	"github.com/nereid-serving/nereid/cmd/nereid/internal/perf"
	"github.com/nereid-serving/nereid/libs/client"
	"github.com/nereid-serving/nereid/libs/errs"
)

// classes are the requests by model and caller.
func (p *performance) classes(ctx context.Context) ([]perf.Class, error) {
	callers := p.Callers
	if len(callers) == 0 {
		callers = []tenant{{share: 1}}
	}
	var list []perf.Class
	for _, text := range p.Models {
		model, share, err := shared(text)
		if err != nil {
			return nil, err
		}
		// The first caller may see the model's metadata as well as the others.
		about, err := p.metadata(ctx, model, callers[0])
		if err != nil {
			return nil, err
		}
		items, err := p.items(about)
		if err != nil {
			return nil, err
		}
		var outputs []string
		for _, out := range about.Outputs {
			outputs = append(outputs, out.Name)
		}
		for _, t := range callers {
			header := p.Caller.headers()
			if t.header.name != "" {
				header.Set(t.header.name, t.header.value)
			}
			list = append(list, perf.Class{
				Model: model, Version: p.Version, Caller: t.name, Header: header, Share: share * t.share, Items: items,
				Outputs: outputs, OutputSize: p.OutputSize,
				Sequences: p.Sequence.Length > 0 || len(items[0]) > 1,
			})
		}
	}
	return list, nil
}

func (p *performance) metadata(ctx context.Context, model string, as tenant) (about *client.Metadata, err error) {
	s := server{URL: p.URL, Protocol: p.Protocol, Caller: p.Caller}
	if as.header.name != "" {
		s.Caller.Header = append(s.Caller.Header[:len(s.Caller.Header):len(s.Caller.Header)], as.header)
	}
	s.Caller.Timeout = max(s.Caller.Timeout, 10*time.Second)
	err = s.ask(ctx, func(ctx context.Context, c client.Client) error {
		about, err = c.Metadata(ctx, model, p.Version)
		return err
	})
	return about, err
}

// drawnItems is how many requests are drawn. They are sent in turn.
const drawnItems = 16

// items are the data of the requests for a model.
func (p *performance) items(about *client.Metadata) ([][]perf.Item, error) {
	var items [][]perf.Item
	switch p.Data {
	case "", "random", "zero":
		d := p.Draw
		if p.Data == "zero" {
			for _, in := range about.Inputs {
				d.Ranges = append(d.Ranges, in.Name+"=0:1e-300")
			}
		}
		draw, err := d.of(about, p.Rows, p.Inputs)
		if err != nil {
			return nil, err
		}
		for range drawnItems {
			items = append(items, []perf.Item{{Inputs: draw()}})
		}
	default:
		text, err := os.ReadFile(p.Data)
		if err != nil {
			return nil, errs.Wrap(errs.ConfigInvalid, err, "--input-data=%s: the file cannot be read", p.Data)
		}
		if items, err = perf.ReadData(text, about, int(p.Rows)); err != nil {
			return nil, err
		}
	}
	return p.Sequence.of(items), nil
}

// of makes sequences of requests, unless the data have them.
func (s *sequencing) of(items [][]perf.Item) [][]perf.Item {
	if s.Length == 0 || len(items[0]) > 1 {
		return items
	}
	list := make([][]perf.Item, len(items))
	for i := range items {
		// Lengths are spread evenly over their variation.
		part := 2*float64(i)/float64(max(len(items)-1, 1)) - 1
		length := max(int(float64(s.Length)*(1+part*s.Variation/100)+0.5), 1)
		for j := range length {
			list[i] = append(list[i], items[(i+j)%len(items)][0])
		}
	}
	return list
}
