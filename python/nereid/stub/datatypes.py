"""Datatypes: their names in the inference protocol, in configurations and in numpy, and the bytes of strings."""

import struct
from typing import Any, Dict, List

import numpy as np

# name, number in a configuration, numpy's type
_TABLE = (
    ("BOOL", 1, np.bool_),
    ("UINT8", 2, np.uint8),
    ("UINT16", 3, np.uint16),
    ("UINT32", 4, np.uint32),
    ("UINT64", 5, np.uint64),
    ("INT8", 6, np.int8),
    ("INT16", 7, np.int16),
    ("INT32", 8, np.int32),
    ("INT64", 9, np.int64),
    ("FP16", 10, np.float16),
    ("FP32", 11, np.float32),
    ("FP64", 12, np.float64),
    ("BYTES", 13, np.object_),
)

NUMPY: Dict[str, np.dtype] = {name: np.dtype(kind) for name, _, kind in _TABLE}
NUMBERS: Dict[int, Any] = {number: kind for _, number, kind in _TABLE}
NAMES: Dict[np.dtype, str] = {kind: name for name, kind in NUMPY.items()}
_NUMBER: Dict[str, int] = dict({name: number for name, number, _ in _TABLE}, BF16=14)
# BF16 has no numpy type: its tensors are kept as their bits.
NUMPY["BF16"] = np.dtype(np.uint16)

_LENGTH = struct.Struct("<I")


def serialize(array: np.ndarray) -> bytes:
    """Return the elements, each behind its length in 4 bytes. What is no bytes is its text in UTF-8."""
    elements: List[bytes] = array.ravel().tolist()
    for position, element in enumerate(elements):
        if type(element) is not bytes:
            elements[position] = str(element).encode("utf-8")
    pieces: List[bytes] = [b""] * (2 * len(elements))
    pieces[0::2] = map(_LENGTH.pack, map(len, elements))
    pieces[1::2] = elements
    return b"".join(pieces)


def deserialize(encoded: Any, at: int, end: int) -> List[bytes]:
    """Return the elements that lie between two offsets."""
    length_at = _LENGTH.unpack_from
    elements = []
    append = elements.append
    while at < end:
        (size,) = length_at(encoded, at)
        at += 4
        if end - at < size:
            raise ValueError("an element of %d bytes begins %d bytes before the end" % (size, end - at))
        append(bytes(encoded[at : at + size]))
        at += size
    return elements


def to_array(elements: List[bytes], shape: List[int]) -> np.ndarray:
    """Return an array of objects."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array.reshape(shape)


def number_of(name: str) -> int:
    """Return a datatype's number in configurations."""
    return _NUMBER[name]
