// Package state converts what the values of the buckets, and the calls about
// them, share with the plain types of the services: a model's content, the
// kinds of devices and how far instances are.
package state

import (
	"github.com/nereid-serving/nereid/libs/infer"
	"github.com/nereid-serving/nereid/libs/modelconfig"
	nereidv1 "github.com/nereid-serving/nereid/proto/nereid/v1"
)

// RefOf names the content that a message names; the zero one for nil.
func RefOf(m *nereidv1.ModelRef) infer.ModelRef {
	return infer.ModelRef{Namespace: m.GetNamespace(), Name: m.GetName(), Version: m.GetVersion(), Generation: m.GetGeneration()}
}

// Ref is the message that names a content.
func Ref(r infer.ModelRef) *nereidv1.ModelRef {
	return &nereidv1.ModelRef{Namespace: r.Namespace, Name: r.Name, Version: r.Version, Generation: r.Generation}
}

// KindOf reads a kind of device. What states none, or one of a newer release, is
// a CPU.
func KindOf(k nereidv1.DeviceKind) modelconfig.DeviceKind {
	switch k {
	case nereidv1.DeviceKind_DEVICE_KIND_GPU:
		return modelconfig.KindGPU
	case nereidv1.DeviceKind_DEVICE_KIND_MODEL:
		return modelconfig.KindModel
	}
	return modelconfig.KindCPU
}

// Kind writes a kind of device. [modelconfig.KindAuto] has none: placement
// decides it before it is written.
func Kind(k modelconfig.DeviceKind) nereidv1.DeviceKind {
	switch k {
	case modelconfig.KindGPU:
		return nereidv1.DeviceKind_DEVICE_KIND_GPU
	case modelconfig.KindModel:
		return nereidv1.DeviceKind_DEVICE_KIND_MODEL
	}
	return nereidv1.DeviceKind_DEVICE_KIND_CPU
}

// InstanceOf reads how far an instance is. What states none, or one of a newer
// release, is unknown.
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

// Instance writes how far an instance is.
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
