"""The driver: what tritonclient asks it is which device is in use."""

import enum


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0


def cuGetErrorString(error):
    return CUresult.CUDA_SUCCESS, b"unknown error"


def cuDeviceGet(number):
    return CUresult.CUDA_SUCCESS, number


def cuDevicePrimaryCtxGetState(device):
    return CUresult.CUDA_SUCCESS, 0, 1
