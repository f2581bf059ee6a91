"""Memory of NVIDIA's GPUs, copied by their driver."""

import ctypes
from typing import Any, Optional

from .errors import TritonModelException

LIBRARY = "libcuda.so.1"


class Driver:
    """The functions of CUDA's driver that a copy to the host takes. It is opened by the first copy."""

    def __init__(self) -> None:
        self._library: Any = None

    def copy_to_host(self, device: int, address: int, to: int, size: int) -> None:
        """Copy size bytes of a device's memory to an address of the host, when the device has written them.

        It is of the device's primary context, which is that of all who use CUDA's runtime, as PyTorch does.
        """
        library = self._open()
        handle, context, none = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._check(library.cuDeviceGet(ctypes.byref(handle), device), "find GPU %d" % device)
        self._check(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "use GPU %d" % device)
        try:
            self._check(library.cuCtxPushCurrent_v2(context), "use GPU %d" % device)
            try:
                copied = library.cuMemcpyDtoH_v2(ctypes.c_void_p(to), ctypes.c_uint64(address), ctypes.c_size_t(size))
            finally:
                library.cuCtxPopCurrent_v2(ctypes.byref(none))
            self._check(copied, "copy %d bytes from GPU %d" % (size, device))
        finally:
            library.cuDevicePrimaryCtxRelease_v2(handle)

    def _open(self) -> Any:
        if self._library is None:
            try:
                library = ctypes.CDLL(LIBRARY)
            except OSError as error:
                raise TritonModelException("a tensor is on a GPU, and NVIDIA's driver is not there to copy it: %s" % error) from error
            self._library = library
            self._check(library.cuInit(0), "begin")
        return self._library

    def _check(self, code: int, doing: str) -> None:
        if code == 0:
            return
        name: Optional[bytes] = None
        text = ctypes.c_char_p()
        if self._library.cuGetErrorString(code, ctypes.byref(text)) == 0:
            name = text.value
        raise TritonModelException("CUDA cannot %s: %s" % (doing, name.decode() if name else "error %d" % code))


DRIVER = Driver()
