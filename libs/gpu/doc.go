// Package gpu tells of NVIDIA's GPUs what their driver knows by its management library, NVML:
// which there are, how busy they are, and how well. Without the driver there are none.
package gpu
