package main

import (
	"bufio"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nereid-serving/nereid/libs/errs"
	inferapi "github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/recording"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
	"github.com/nereid-serving/nereid/services/registry"
	"github.com/nereid-serving/nereid/services/scheduler/simulate"
)

// readRecording reads the requests of a recording, and what their executions take. The workload is
// nil where --trace is no recording.
func (s *simulation) readRecording(ctx context.Context, c *simulate.Config) (*simulate.Workload, error) {
	file, err := openFile(ctx, "--trace", s.Trace)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	in := bufio.NewReader(file)
	switch {
	case !recording.Is(in):
		return nil, nil
	case len(s.Repositories) == 0:
		return nil, errs.New(errs.ConfigInvalid, "a recording has no configurations of models: give their --model-repository")
	case s.Costs == "":
		return nil, errs.New(errs.ConfigInvalid, "a recording does not say what executions take: give a table or a decision log with --costs")
	}
	all, err := recording.Read(in)
	switch {
	case errors.Is(err, recording.ErrTruncated) && !s.Truncated:
		return nil, errs.Wrap(errs.ConfigInvalid, err, "--trace=%s: add --truncated to take the %d requests before", s.Trace, len(all.Requests))
	case err != nil && !errors.Is(err, recording.ErrTruncated):
		return nil, errs.Wrap(errs.ConfigInvalid, err, "--trace=%s", s.Trace)
	case len(all.Requests) == 0:
		return nil, errs.New(errs.ConfigInvalid, "--trace=%s: the recording has no requests", s.Trace)
	}
	if err := s.readCosts(ctx, c); err != nil {
		return nil, err
	}
	models, err := s.models(ctx)
	if err != nil {
		return nil, err
	}
	r := &simulate.Recorded{Limits: queueLimits(), Devices: s.Devices, Instances: s.Instances}
	for i := range all.Requests {
		if err := s.addRecorded(models, c.Costs, r, &all.Requests[i]); err != nil {
			return nil, err
		}
	}
	return r.Workload(), nil
}

// addRecorded adds a request, and its model where it is the first.
func (s *simulation) addRecorded(models []registry.CheckResult, costs *simulate.Costs, r *simulate.Recorded, from *recording.Request) error {
	m := new(inference.ModelInferRequest)
	if err := proto.Unmarshal(from.GetRequest(), m); err != nil {
		return errs.Wrap(errs.ConfigInvalid, err, "--trace=%s: request %d cannot be read", s.Trace, from.GetNumber())
	}
	model := slices.IndexFunc(r.Models, func(known simulate.RecordedModel) bool { return known.Config.Name == m.GetModelName() })
	if model < 0 {
		config, err := s.configuration(models, m.GetModelName())
		if err != nil {
			return err
		}
		kind := kindOf(config, costs)
		if kind == "" {
			return errs.New(errs.ConfigInvalid, "--costs=%s does not say what executions of model '%s' take", s.Costs, m.GetModelName())
		}
		model = len(r.Models)
		r.Models = append(r.Models, simulate.RecordedModel{Config: config, Kind: kind})
	}
	q := simulate.RecordedRequest{Offset: time.Duration(from.GetOffsetNs()), Model: model, Deadline: time.Duration(from.GetDeadlineNs())}
	q.Request = simulate.Arrival{
		BatchSize: max(from.GetBatchSize(), 1), Bytes: from.GetInputBytes(), Tenant: from.GetTenant(), Sequence: sequenceOf(m.GetParameters()),
		Share:    inferapi.Share{Band: from.GetBand(), Minimum: from.GetBandMinimum(), Weight: from.GetTenantWeight()},
		Priority: uint64(max(m.GetParameters()["priority"].GetInt64Param(), 0)), //nolint:gosec // not negative
		Timeout:  time.Duration(max(m.GetParameters()["timeout"].GetInt64Param(), 0)) * time.Microsecond,
	}
	for _, in := range m.GetInputs() {
		q.Request.Inputs = append(q.Request.Inputs, inferapi.Tensor{Name: in.GetName(), Shape: in.GetShape()})
	}
	r.Requests = append(r.Requests, q)
	return nil
}

// sequenceOf is the sequence that parameters of a request name.
func sequenceOf(p map[string]*inference.InferParameter) inferapi.Sequence {
	id := p["sequence_id"]
	return inferapi.Sequence{
		ID: uint64(id.GetInt64Param()), Key: id.GetStringParam(), //nolint:gosec // as clients send it
		Start: p["sequence_start"].GetBoolParam(), End: p["sequence_end"].GetBoolParam(),
	}
}
