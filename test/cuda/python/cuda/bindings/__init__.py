"""Stands for NVIDIA's package cuda-python over the emulated CUDA: as much of it as tritonclient uses."""
