"""DLPack: tensors to and from other libraries, without a copy."""

import ctypes
from typing import Any, List, Tuple, Union

import numpy as np

from . import cuda
from .errors import TritonModelException

CPU = 1
_GPU = 2
_PINNED = 3
_MANAGED = 13
# The stream of those who name none, by whose order whoever reads next finds what was written.
_DEFAULT_STREAM = 1

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_KINDS = {"i": _INT, "u": _UINT, "f": _FLOAT, "b": _BOOL}
_NUMPY = {_INT: "i", _UINT: "u", _FLOAT: "f", _BFLOAT: "u", _BOOL: "b"}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


class _Datatype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int),
        ("datatype", _Datatype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_api = ctypes.pythonapi
_capsule_destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = _api.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _capsule_destructor]
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_pointer_of = _api.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
_rename = _api.PyCapsule_SetName
_rename.restype = ctypes.c_int
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
# A destructor gets a capsule that dies: as py_object it would be counted up and down, and die twice.
_is_valid_dying = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_of_dying = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

_FRESH = b"dltensor"
_USED = b"used_dltensor"

# What capsules that are out hold, by the address of their tensor: until their consumer calls the deleter.
_held = {}


@_Deleter
def _delete(managed: Any) -> None:
    _held.pop(ctypes.addressof(managed.contents), None)


@_capsule_destructor
def _destroy(capsule: Any) -> None:
    # The name is used_dltensor once a consumer has taken the tensor, and with it the duty to delete it.
    if _is_valid_dying(capsule, _FRESH):
        _held.pop(_pointer_of_dying(capsule, _FRESH), None)


def to_capsule(array: np.ndarray, bf16: bool, owner: object) -> Any:
    """Return a capsule that shares the memory of a contiguous array, or, where that is its bits, of a BF16 tensor.

    The owner lives as long as the capsule does, or what is made of it.
    """
    return _capsule(array.ctypes.data, (CPU, 0), array.dtype, array.shape, bf16, (array, owner))


def _capsule(data: int, device: Tuple[int, int], kind: np.dtype, sizes: Any, bf16: bool, owner: object) -> Any:
    managed = _Managed()
    shape = (ctypes.c_int64 * len(sizes))(*sizes)
    tensor = managed.tensor
    tensor.data = data
    tensor.device = _Device(*device)
    tensor.ndim = len(sizes)
    tensor.datatype = _Datatype(_BFLOAT if bf16 else _KINDS[kind.kind], kind.itemsize * 8, 1)
    tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _held[address] = (managed, shape, owner)
    return _new_capsule(address, _FRESH, _destroy)


class _Memory:
    """Another library's tensor, until the last view of it is gone."""

    def __init__(self, managed: Any, capsule: Any) -> None:
        self._managed = managed
        self._capsule = capsule
        self.__array_interface__: Any = None

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(ctypes.byref(self._managed))


class OnDevice:
    """A tensor in a GPU's memory, which is another library's."""

    def __init__(self, memory: _Memory, device: Tuple[int, int], data: int, shape: List[int], kind: np.dtype, bf16: bool) -> None:
        self._memory = memory
        self._data = data
        self._bf16 = bf16
        self.device = device
        self.shape = tuple(shape)
        self.dtype = kind

    def to_capsule(self, owner: object) -> Any:
        """Return a capsule that shares the memory."""
        return _capsule(self._data, self.device, self.dtype, self.shape, self._bf16, (self, owner))

    def to_host(self) -> np.ndarray:
        """Return a copy in the host's memory."""
        array = np.empty(self.shape, self.dtype)
        if array.nbytes:
            cuda.DRIVER.copy_to_host(self.device[1], self._data, array.ctypes.data, array.nbytes)
        return array


def from_dlpack(source: Any) -> Tuple[Union[np.ndarray, OnDevice], bool]:
    """Return what shares the memory of a capsule or of a tensor, and whether it has the bits of BF16."""
    if not _is_capsule(source):
        if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and `__dlpack_device__` attributes"
            )
        device = int(source.__dlpack_device__()[0])
        if device not in (CPU, _GPU, _PINNED, _MANAGED):
            raise TritonModelException("DLDevice type %d is not support by Python backend." % device)
        source = source.__dlpack__(stream=_DEFAULT_STREAM) if device in (_GPU, _MANAGED) else source.__dlpack__()
    if not _is_valid(source, _FRESH):
        raise TritonModelException("the DLPack capsule was used before, or holds no tensor of the protocol's first version")
    managed = ctypes.cast(_pointer_of(source, _FRESH), ctypes.POINTER(_Managed)).contents
    tensor = managed.tensor
    if tensor.device.kind not in (CPU, _GPU, _PINNED, _MANAGED):
        raise TritonModelException("DLDevice type %d is not support by Python backend." % tensor.device.kind)
    kind, bf16 = _numpy_kind(tensor.datatype)
    shape = [tensor.shape[axis] for axis in range(tensor.ndim)]
    if tensor.strides and not _contiguous(shape, [tensor.strides[axis] for axis in range(tensor.ndim)]):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    on_device = tensor.device.kind in (_GPU, _MANAGED)
    if 0 in shape and not on_device:
        return np.empty(shape, kind), bf16
    memory = _Memory(managed, source)
    _rename(source, _USED)
    if on_device:
        where = (tensor.device.kind, tensor.device.number)
        return OnDevice(memory, where, (tensor.data or 0) + tensor.byte_offset, shape, kind, bf16), bf16
    memory.__array_interface__ = {
        "version": 3,
        "data": (tensor.data + tensor.byte_offset, False),
        "shape": tuple(shape),
        "typestr": kind.str,
    }
    return np.asarray(memory), bf16


def _is_capsule(source: Any) -> bool:
    return type(source).__name__ == "PyCapsule"


def _numpy_kind(datatype: _Datatype) -> Tuple[np.dtype, bool]:
    letter = _NUMPY.get(datatype.code)
    bf16 = datatype.code == _BFLOAT
    if letter is None or datatype.lanes != 1 or datatype.bits not in (8, 16, 32, 64):
        raise TritonModelException("DType code \"%d\" is not supported." % datatype.code)
    if bf16 and datatype.bits != 16:
        raise TritonModelException("Expected BF16 tensor to have 16 bits, but had: %d" % datatype.bits)
    return np.dtype("%s%d" % (letter, datatype.bits // 8)), bf16


def _contiguous(shape: List[int], strides: List[int]) -> bool:
    if 0 in shape:
        return True  # whatever their strides are, they lead nowhere
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
