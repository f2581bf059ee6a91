"""The runtime: functions return a tuple that begins with the error."""

import ctypes
import enum
import os

_library = ctypes.CDLL(os.path.join(os.environ["NEREID_CUDA_LIBRARIES"], "libcudart.so.13"))
_library.cudaGetErrorString.restype = ctypes.c_char_p

CUDA_IPC_HANDLE_SIZE = 64


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorUnknown = 999

    @classmethod
    def _missing_(cls, value):
        return cls.cudaErrorUnknown


class cudaDeviceAttr(enum.IntEnum):
    cudaDevAttrUnifiedAddressing = 41


class cudaMemcpyKind(enum.IntEnum):
    cudaMemcpyDefault = 4


class cudaIpcMemHandle_t:
    def __init__(self):
        self._bytes = ctypes.create_string_buffer(CUDA_IPC_HANDLE_SIZE)

    def getPtr(self):
        return ctypes.addressof(self._bytes)


def _call(name, *arguments):
    return cudaError_t(getattr(_library, name)(*arguments))


def cudaGetErrorString(error):
    return cudaError_t.cudaSuccess, _library.cudaGetErrorString(int(error))


def cudaGetDevice():
    number = ctypes.c_int()
    return _call("cudaGetDevice", ctypes.byref(number)), number.value


def cudaSetDevice(number):
    return (_call("cudaSetDevice", number),)


def cudaDeviceGetAttribute(attribute, device):
    # The emulated device has the attributes that ONNX Runtime looks at.
    return cudaError_t.cudaSuccess, int(attribute == cudaDeviceAttr.cudaDevAttrUnifiedAddressing)


def cudaMalloc(size):
    at = ctypes.c_void_p()
    return _call("cudaMalloc", ctypes.byref(at), ctypes.c_size_t(size)), at.value


def cudaFree(at):
    return (_call("cudaFree", ctypes.c_void_p(at)),)


def cudaIpcGetMemHandle(at):
    handle = cudaIpcMemHandle_t()
    return _call("cudaIpcGetMemHandle", ctypes.c_void_p(handle.getPtr()), ctypes.c_void_p(at)), handle


def cudaMemcpyAsync(to, source, size, kind, stream):
    to, source = (ctypes.c_void_p(at) if isinstance(at, int) else ctypes.cast(at, ctypes.c_void_p) for at in (to, source))
    return (_call("cudaMemcpyAsync", to, source, ctypes.c_size_t(size), int(kind), ctypes.c_void_p(stream)),)


def cudaStreamCreate():
    stream = ctypes.c_void_p()
    return _call("cudaStreamCreate", ctypes.byref(stream)), stream.value


def cudaStreamSynchronize(stream):
    return (_call("cudaStreamSynchronize", ctypes.c_void_p(stream)),)


def cudaStreamDestroy(stream):
    return (_call("cudaStreamDestroy", ctypes.c_void_p(stream)),)
