package tenants

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

// Costs learns what requests of each model cost, by the size of their rows, and predicts what the next ones
// will. It is safe for concurrent use.
type Costs struct {
	mu     sync.Mutex
	models map[infer.ModelID]*modelCosts // guarded by mu
}

// modelCosts are the costs of a model, by the magnitude of the number of elements in a row, at the scheduler's
// resolution.
type modelCosts struct {
	rows   [16]mean // cost units of a row
	error  mean     // of the predictions, relative to the actual cost
	listed bool     // the model was in a snapshot; learning may start before
}

// mean is a running mean in which later samples weigh more.
type mean struct {
	value   float64
	samples int
}

// weight is the weight of a new sample once there are many.
const weight = 1.0 / 16

func (m *mean) add(v float64) {
	m.samples++
	m.value += (v - m.value) * math.Max(weight, 1/float64(m.samples))
}

// shapeOf returns the magnitude of a request's rows.
func shapeOf(elements, rows int64) int {
	return min(bits.Len64(uint64(max(elements, 0)/max(rows, 1)))/2, 15) //nolint:gosec // not negative
}

// Predict returns the likely cost of a request in cost units, from requests whose rows were nearest in size; 0
// if nothing is known about the model.
func (c *Costs) Predict(model infer.ModelID, elements, rows int64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.models[model]
	if m == nil {
		return 0
	}
	return m.nearest(shapeOf(elements, rows)) * float64(max(rows, 1))
}

// nearest returns the cost of a row of the known size that is nearest to shape.
func (m *modelCosts) nearest(shape int) float64 {
	for off := range m.rows {
		for _, at := range [...]int{shape - off, shape + off} {
			if at >= 0 && at < len(m.rows) && m.rows[at].samples > 0 {
				return m.rows[at].value
			}
		}
	}
	return 0
}

// Recall seeds a model's costs with stored execution costs. What was learned from requests stays.
func (c *Costs) Recall(model infer.ModelID, known []infer.Cost) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.model(model)
	var fresh modelCosts
	for _, k := range known {
		row := float64(k.Mean) / float64(time.Millisecond) / float64(max(k.BatchSize, 1))
		for range min(k.Executions, recalled) {
			fresh.rows[min(k.Magnitude/2, 15)].add(row)
		}
	}
	for i := range m.rows {
		if m.rows[i].samples == 0 && fresh.rows[i].samples > 0 {
			m.rows[i] = mean{fresh.rows[i].value, 1}
		}
	}
}

// recalled is the maximum number of executions of one batch size that count.
const recalled = 16

// model returns the costs of a model, which it adds if necessary. The caller holds mu.
func (c *Costs) model(id infer.ModelID) *modelCosts {
	m := c.models[id]
	if m == nil {
		m = &modelCosts{}
		if c.models == nil {
			c.models = make(map[infer.ModelID]*modelCosts)
		}
		c.models[id] = m
	}
	return m
}

// Learn records the actual cost of a request and its predicted cost.
func (c *Costs) Learn(model infer.ModelID, elements, rows int64, predicted, cost float64) {
	if cost <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.model(model)
	m.rows[shapeOf(elements, rows)].add(cost / float64(max(rows, 1)))
	if predicted > 0 {
		m.error.add(math.Abs(predicted-cost) / cost)
	}
}

// Errors calls each with the mean error of the predictions for each model, relative to the actual costs.
func (c *Costs) Errors(each func(model string, relative float64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, m := range c.models {
		if m.error.samples > 0 {
			each(id.String(), m.error.value)
		}
	}
}

// Retain forgets the models that were listed before and are not listed now. Models that were never listed stay:
// costs may be known before the model is.
func (c *Costs) Retain(listed func(infer.ModelID) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, m := range c.models {
		switch is := listed(id); {
		case is:
			m.listed = true
		case m.listed:
			delete(c.models, id)
		}
	}
}

// Forget forgets a model whose stored costs were deleted, unless it is listed.
func (c *Costs) Forget(model infer.ModelID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.models[model]; m != nil && !m.listed {
		delete(c.models, model)
	}
}
