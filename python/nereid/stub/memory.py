"""The memory of tensors that stub and worker share: files without names, of slots of one size."""

import ctypes
import fcntl
import mmap
import os
import threading
from typing import Any, Dict, List, Tuple

SMALLEST_SLOT = 4 << 10
FILE_SIZE = 1 << 20
# So many free bytes are kept; files that are more are dropped.
KEPT_FREE = 64 << 20

# fcntl has names for these from Python 3.9 on.
_ADD_SEALS = 1033
_GET_SEALS = 1034
_SEAL_SHRINK = 2

Place = Tuple[int, int]


class ProtocolError(Exception):
    """The worker sent what is no message; the connection ends."""


def slot_size(size: int) -> int:
    """Return the size of the slots that hold tensors of size bytes."""
    return max(SMALLEST_SLOT, 1 << (size - 1).bit_length())


class WorkerFiles:
    """The files that the worker has passed. A slot that nobody sees any more is in released, whatever thread saw it last."""

    def __init__(self, release: Any) -> None:
        self._maps: Dict[int, mmap.mmap] = {}
        self._types: Dict[int, Any] = {}
        self._release = release

    def add(self, number: int, size: int, descriptor: int) -> None:
        """Map a file, which takes the descriptor over."""
        try:
            if not fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK:
                raise ProtocolError("file %d is not sealed against shrinking" % number)
            if size <= 0 or os.fstat(descriptor).st_size < size:
                raise ProtocolError("file %d has less than %d bytes" % (number, size))
            self._maps[number] = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def drop(self, number: int) -> None:
        """Unmap a file once the last view of it is gone."""
        self._maps.pop(number, None)

    def slot(self, number: int, offset: int, size: int) -> Any:
        """Return the slot's bytes. It is released when nothing refers to what this returns, nor to views of it."""
        size = slot_size(size)
        kind = self._types.get(size) or self._type(size)
        try:
            slot = kind.from_buffer(self._maps[number], offset)
        except (KeyError, ValueError) as error:
            raise ProtocolError("no slot of %d bytes at %d of file %d: %s" % (size, offset, number, error)) from None
        slot.place = (number, offset)
        return slot

    def _type(self, size: int) -> Any:
        release = self._release

        class Slot(ctypes.c_char * size):  # type: ignore[misc]
            def __del__(self) -> None:
                # Without a place it was never given to anybody.
                place = getattr(self, "place", None)
                if place is not None:
                    release(place)

        self._types[size] = Slot
        return Slot


class _File:
    """One file of the stub's own memory."""

    __slots__ = ("number", "size", "slot", "map", "used")

    def __init__(self, number: int, slot: int) -> None:
        self.number = number
        self.slot = slot
        self.size = max(FILE_SIZE, slot)
        self.used = 0
        self.map: Any = None

    def make(self) -> int:
        """Make and map the file, and return its descriptor."""
        descriptor = os.memfd_create("nereid-stub", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, self.size)
            fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK)
            self.map = mmap.mmap(descriptor, self.size)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


class StubFiles:
    """The stub's own memory, for outputs. Its methods may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below
        self._files: Dict[int, _File] = {}
        self._free: Dict[int, List[Tuple[_File, int]]] = {}
        self._free_bytes = 0
        self._made = 0
        self._unsent: List[Tuple[int, int, int]] = []
        self._dropped: List[int] = []

    def take(self, size: int) -> Tuple[Any, int, int]:
        """Take a slot for size bytes; return its file's map, the file's number and the offset."""
        wanted = slot_size(size)
        with self._lock:
            slots = self._free.setdefault(wanted, [])
            if not slots:
                self._grow(wanted, slots)
            file, offset = slots.pop()
            file.used += 1
            self._free_bytes -= wanted
            return file.map, file.number, offset

    def _grow(self, wanted: int, slots: List[Tuple[_File, int]]) -> None:
        file = _File(self._made, wanted)
        descriptor = file.make()
        self._made += 1
        self._files[file.number] = file
        self._unsent.append((file.number, file.size, descriptor))
        slots.extend((file, offset) for offset in range(file.size - wanted, -1, -wanted))
        self._free_bytes += file.size

    def give_back(self, places: List[Place]) -> None:
        """Take slots back that the worker has released, or that were never sent."""
        with self._lock:
            for number, offset in places:
                file = self._files.get(number)
                if file is None or offset % file.slot or not file.used:
                    raise ProtocolError("release of a slot that is not in use: file %d, offset %d" % (number, offset))
                file.used -= 1
                self._free[file.slot].append((file, offset))
                self._free_bytes += file.slot
            if self._free_bytes > KEPT_FREE:
                self._trim()

    def _trim(self) -> None:
        for file in [file for file in self._files.values() if not file.used]:
            if self._free_bytes <= KEPT_FREE:
                return
            self._free[file.slot] = [slot for slot in self._free[file.slot] if slot[0] is not file]
            self._free_bytes -= file.size
            del self._files[file.number]
            self._dropped.append(file.number)

    def has_unsent(self) -> bool:
        """Say whether there are files that the worker does not have yet. Of what this thread has taken it knows."""
        return bool(self._unsent)

    def take_unsent(self) -> List[Tuple[int, int, int]]:
        """Return number, size and descriptor of the files that the worker does not have yet; the caller closes the descriptors."""
        with self._lock:
            unsent, self._unsent = self._unsent, []
            return unsent

    def take_dropped(self) -> List[int]:
        """Return the numbers of files that the worker may unmap."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
            return dropped
