package modelconfig

import (
	"path"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/nereid-serving/nereid/libs/errs"
	inference "github.com/nereid-serving/nereid/proto/inference/v2"
)

// ask has the model complete c itself, and reports why it did not. As in Triton,
// the model sees the configuration with its defaults, and of what it returns
// inputs, outputs, max_batch_size, the transaction policy and, where c has
// no scheduler, that are taken. A configuration that breaks a rule is not shown
// to it.
func (r *report) ask(c *inference.ModelConfig, dir Directory, version int64) bool {
	how := dir.Complete
	Normalize(c, dir)
	if how.Ask == nil || len(validate(c, dir.Name)) > 0 {
		return false
	}
	r.file = path.Join(strconv.FormatInt(version, 10), c.GetDefaultModelFilename())
	defer func() { r.file = "" }()
	text, err := how.Ask(version, JSON(c), hasTensors(c) && !dir.pythonBased(c.GetBackend()))
	if err != nil {
		r.add(errs.LoadFailed, "", "", errs.From(err).Msg)
		return false
	}
	completed := new(inference.ModelConfig)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, completed); err != nil {
		r.autofill("", "set what the format has, as the model configuration endpoint shows it", "the model's auto_complete_config gave no configuration: %v", err)
		return false
	}
	r.answered = r.file
	c.MaxBatchSize = completed.GetMaxBatchSize()
	c.Input, c.Output = completed.GetInput(), completed.GetOutput()
	if c.GetSchedulingChoice() == nil {
		c.SchedulingChoice = completed.GetSchedulingChoice()
	}
	if completed.GetModelTransactionPolicy() != nil {
		c.ModelTransactionPolicy = completed.GetModelTransactionPolicy()
	}
	return true
}

// FromJSON reads a configuration as [JSON] writes it. Its error is as
// [FromProto]'s.
func FromJSON(text []byte) (*Config, error) {
	c := new(inference.ModelConfig)
	if err := protojson.Unmarshal(text, c); err != nil {
		return nil, errs.Wrap(errs.ConfigInvalid, err, "the model configuration cannot be read: %v", err)
	}
	return FromProto(c)
}
