package decisionlog

import (
	"math"
	"time"

	"github.com/nereid-serving/nereid/libs/infer"
)

func (e *encoder) costs(list []infer.Cost) {
	e.uint(uint64(len(list)))
	for i := range list {
		c := &list[i]
		e.string(c.Device)
		e.byte(c.Magnitude)
		e.int(c.BatchSize)
		e.uint(uint64(c.Executions))
		e.int(int64(c.Mean))
		e.uint(math.Float64bits(c.Deviation))
	}
}

func (d *decoder) costs() (list []infer.Cost) {
	for range d.count() {
		list = append(list, infer.Cost{
			Device: d.string(), Magnitude: d.byte(), BatchSize: d.int(), Executions: uint32(d.uint()),
			Mean: time.Duration(d.int()), Deviation: math.Float64frombits(d.uint()),
		})
	}
	return list
}
