//go:build cgo

package onnxruntime

import "time"

// trimRest is for how many times as long as the last trim took there is none.
const trimRest = 20

// trimmer gives the memory of closed models back to the system. That takes a
// look at the whole heap, all models that are open included, so that it is done
// beside their closing, and once for all that are closed at about one time.
type trimmer struct {
	asked chan struct{}
	stop  chan struct{}
	ended chan struct{}
}

func startTrimmer(trim func()) *trimmer {
	t := &trimmer{asked: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	go t.run(trim) // ends with close
	return t
}

// ask has the heap trimmed soon.
func (t *trimmer) ask() {
	select {
	case t.asked <- struct{}{}:
	default:
	}
}

func (t *trimmer) run(trim func()) {
	defer close(t.ended)
	for {
		select {
		case <-t.stop:
			return
		case <-t.asked:
		}
		begun := time.Now()
		trim()
		rest := time.NewTimer(trimRest * time.Since(begun))
		select {
		case <-t.stop:
		case <-rest.C:
		}
		rest.Stop()
	}
}

// close waits for a trim under way.
func (t *trimmer) close() {
	close(t.stop)
	<-t.ended
}
