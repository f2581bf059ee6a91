"""Tensors, as models see them and as messages have them."""

from typing import Any, List, Optional

import numpy as np

from . import datatypes, dlpack
from .connection import Connection
from .errors import TritonModelException

# Smaller tensors travel in the body of a message.
SMALLEST_SHARED = 4 << 10


class Tensor:
    """A named tensor. Its array of numpy is made when it is asked for."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_name", "_datatype", "_shape", "_array", "_memory", "_at", "_size", "_origin", "_device")

    def __init__(self, name: str, array: np.ndarray) -> None:
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            raise TypeError(
                "Tensor(name: str, array: numpy.ndarray) was called with %s and %s" % (type(name).__name__, type(array).__name__)
            )
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = datatypes.NAMES.get(array.dtype)
        if datatype is None:
            if array.dtype.kind != "S":
                raise TritonModelException("NumPy dtype is not supported.")
            datatype = "BYTES"
        if not array.flags.c_contiguous:
            array = array.copy("C")
        self._name = name
        self._datatype = datatype
        self._shape = array.shape
        self._array: Optional[np.ndarray] = array
        self._memory: Any = None
        self._at = self._size = 0
        # Where the worker has these bytes already: [call, index].
        self._origin: Optional[List[int]] = None
        # What is in a GPU's memory, and not in the array.
        self._device: Optional[dlpack.OnDevice] = None

    def name(self) -> str:
        """Return the name."""
        return self._name

    def shape(self) -> List[int]:
        """Return the shape."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """Return the number that configurations give to the datatype."""
        return datatypes.number_of(self._datatype)

    def is_cpu(self) -> bool:
        """Say whether the tensor is in the host's memory: those are not that a model has made on a GPU."""
        return self._device is None

    def as_numpy(self) -> np.ndarray:
        """Return the tensor's array, which shares its memory."""
        if self._device is not None:
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        array = self._array
        return self._bits() if array is None else array

    def to_dlpack(self) -> Any:
        """Return a capsule of DLPack, which shares the tensor's memory."""
        return self.__dlpack__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """Return a tensor that shares the memory of a capsule, or of what has __dlpack__ and __dlpack_device__."""
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        memory, bf16 = dlpack.from_dlpack(tensor)
        if isinstance(memory, dlpack.OnDevice):
            made = Tensor(name, np.empty(0, memory.dtype))
            made._array, made._device, made._shape = None, memory, memory.shape
        else:
            made = Tensor(name, memory)
        if bf16:
            made._datatype = "BF16"
        return made

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        if self._device is not None:
            return self._device.to_capsule(self)
        return dlpack.to_capsule(self._bits(), self._datatype == "BF16", self)

    def __dlpack_device__(self) -> Any:
        return (dlpack.CPU, 0) if self._device is None else self._device.device

    def _bits(self) -> np.ndarray:
        """Return the array; that of BF16 has its bits, and of a GPU's memory it is a copy."""
        if self._device is not None:
            return self._device.to_host()
        array = self._array
        if array is not None:
            return array
        memory, at, size = self._memory, self._at, self._size
        if self._datatype == "BYTES":
            array = datatypes.to_array(datatypes.deserialize(memory, at, at + size), self._shape)
        else:
            kind = datatypes.NUMPY[self._datatype]
            if at % kind.itemsize:
                memory, at = bytearray(memory[at : at + size]), 0
            array = np.ndarray(self._shape, kind, memory, at)
        self._array = array
        return array


_new = Tensor.__new__


def decode(connection: Connection, listed: List[Any], body: bytearray, at: int, tensors: List[Tensor]) -> int:
    """Append a message's tensors to tensors, and return the offset in the body behind them."""
    for name, datatype, shape, place in listed:
        tensor = _new(Tensor)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._array = tensor._origin = tensor._device = None
        if len(place) == 1:
            tensor._memory = body
            tensor._at = at
            tensor._size = place[0]
            at += place[0]
        else:
            tensor._memory = connection.files.slot(*place)
            tensor._at = 0
            tensor._size = place[2]
        tensors.append(tensor)
    return at


def encode(connection: Connection, tensors: List[Tensor], body: List[Any]) -> List[Any]:
    """Return tensors as messages list them; append to the body what it takes of their bytes."""
    listed = []
    for tensor in tensors:
        array = tensor._bits()
        datatype = tensor._datatype
        if datatype == "BYTES":
            encoded: Any = datatypes.serialize(array)
            size = len(encoded)
            array = np.frombuffer(encoded, np.uint8)
        else:
            size = array.nbytes
            encoded = None
        if size < SMALLEST_SHARED:
            body.append(array.tobytes() if encoded is None else encoded)
            place = [size]
        else:
            memory, file, offset = connection.own.take(size)
            np.ndarray(array.shape, array.dtype, memory, offset)[...] = array
            place = [file, offset, size]
        listed.append([tensor._name, datatype, tensor._shape, place])
    return listed
