// Package gpu reports NVIDIA GPUs through the driver's management library, NVML:
// which GPUs there are, their load, and their health. Without the driver it
// reports none.
package gpu
