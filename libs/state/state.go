// Package state converts between the messages of buckets and calls and the plain
// types of the services: loaded versions, device kinds and instance states.
package state

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// RefOf returns the loaded version that a message names; the zero one for nil.
func RefOf(m *nereidv1.ModelRef) infer.ModelRef {
	return infer.ModelRef{Namespace: m.GetNamespace(), Name: m.GetName(), Version: m.GetVersion(), Generation: m.GetGeneration()}
}

// Ref returns the message that names a loaded version.
func Ref(r infer.ModelRef) *nereidv1.ModelRef {
	return &nereidv1.ModelRef{Namespace: r.Namespace, Name: r.Name, Version: r.Version, Generation: r.Generation}
}

// KindOf returns a kind of device. No kind, and one of a newer release, is a CPU.
func KindOf(k nereidv1.DeviceKind) modelconfig.DeviceKind {
	switch k {
	case nereidv1.DeviceKind_DEVICE_KIND_GPU:
		return modelconfig.KindGPU
	case nereidv1.DeviceKind_DEVICE_KIND_MODEL:
		return modelconfig.KindModel
	}
	return modelconfig.KindCPU
}

// Kind returns the message's kind of device. [modelconfig.KindAuto] has none:
// placement resolves it before it is written.
func Kind(k modelconfig.DeviceKind) nereidv1.DeviceKind {
	switch k {
	case modelconfig.KindGPU:
		return nereidv1.DeviceKind_DEVICE_KIND_GPU
	case modelconfig.KindModel:
		return nereidv1.DeviceKind_DEVICE_KIND_MODEL
	}
	return nereidv1.DeviceKind_DEVICE_KIND_CPU
}

// InstanceOf returns an instance's state. No state, and one of a newer release, is
// unknown.
func InstanceOf(s nereidv1.State) infer.InstanceState {
	switch s {
	case nereidv1.State_STATE_LOADING:
		return infer.Loading
	case nereidv1.State_STATE_READY:
		return infer.Ready
	case nereidv1.State_STATE_UNLOADING:
		return infer.Unloading
	case nereidv1.State_STATE_UNAVAILABLE:
		return infer.Unavailable
	}
	return infer.Unknown
}

// Instance returns the message's state of an instance.
func Instance(s infer.InstanceState) nereidv1.State {
	switch s {
	case infer.Loading:
		return nereidv1.State_STATE_LOADING
	case infer.Ready:
		return nereidv1.State_STATE_READY
	case infer.Unloading:
		return nereidv1.State_STATE_UNLOADING
	case infer.Unavailable:
		return nereidv1.State_STATE_UNAVAILABLE
	}
	return nereidv1.State_STATE_UNSPECIFIED
}
