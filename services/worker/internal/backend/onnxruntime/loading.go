package onnxruntime

/*
#include "shim.h"
*/
import "C"

import (
	"context"

	ort "github.com/yalue/onnxruntime_go"
)

// until ends the load with these settings when ctx ends: the runtime looks
// between its steps, such as passes over the graph. The settings live until
// the returned function was called.
func (e *engine) until(ctx context.Context, s *ort.SessionOptions) (release func(), err error) {
	native, err := nativeField(s, "o")
	if err != nil {
		return nil, err
	}
	stopped := make(chan struct{})
	stop := func() { C.nrt_load_stop(e.c, (*C.OrtSessionOptions)(native)) }
	select {
	case <-ctx.Done():
		stop()
	default:
	}
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		stop()
	})
	return func() {
		if !unhook() {
			<-stopped
		}
	}, nil
}
