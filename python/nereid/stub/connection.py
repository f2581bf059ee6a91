"""The socket to the worker: frames, their file descriptors, and who reads them."""

import array
import collections
import json
import os
import socket
import struct
import threading
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple, TypeVar

from .errors import FORKED, TritonModelException
from .memory import Place, ProtocolError, StubFiles, WorkerFiles

LONGEST_HEADER = 64 << 20
LONGEST_BODY = 1 << 30
# A message can carry so many descriptors: Linux's SCM_MAX_FD.
MOST_DESCRIPTORS = 253

_HEAD = struct.Struct("<III")
_READ_SIZE = 64 << 10
_ANCILLARY_SIZE = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
_MOST_PIECES = 512

_encode_json = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode
# What json.loads comes to, without what it looks for before and after the object: it takes longer than a header does.
_decode_json = json.JSONDecoder().raw_decode

Header = Dict[str, Any]
Handler = Callable[[Header, bytearray], None]
Found = TypeVar("Found")


class Connection:
    """The connection to the worker. A socket that the worker closes ends the process.

    Any thread may send. Nobody reads while nobody waits: a thread that waits for a message reads the socket, one at a time, and
    passes on to handlers what others wait for. An event loop that watches the socket is one more that waits; other threads read
    beside it, since a coroutine of the model may block it until one of them is done.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.own = StubFiles()
        self.files = WorkerFiles(self._release)
        self._socket: Optional[socket.socket] = sock
        # Messages by type to what takes them. They run with the turn held, and must not wait.
        self.handlers: Dict[str, Handler] = {"release": self._released, "drop": self._dropped}

        self.turn = threading.Condition(threading.Lock())
        self._reading = False  # guarded by turn
        self._waiting = 0  # guarded by turn
        self._loop: Any = None
        self._loop_thread = 0

        # Owned by the thread that reads.
        self._buffer = bytearray(_READ_SIZE)
        self._view = memoryview(self._buffer)
        self._begin = 0
        self._end = 0
        self._descriptors: Deque[int] = collections.deque()

        self._sending = threading.Lock()
        # What any thread leaves for the next message, also in the middle of a garbage collection: appended without a lock.
        self._free: Deque[Place] = collections.deque()
        self._left: Deque[Header] = collections.deque()
        # Whether the main thread waits for its next message: then nothing will soon take what is left along.
        self._idle = False

    # Sending

    def send(self, header: Header, body: Sequence[Any] = ()) -> None:
        """Send a message, with what was left for it to take along."""
        if self._socket is None:
            raise TritonModelException(FORKED)
        encoded = _encode_json(header).encode()
        size = sum(map(len, body))
        if len(encoded) > LONGEST_HEADER or size > LONGEST_BODY:
            raise ValueError("a message of %d bytes with a body of %d is longer than the worker takes" % (len(encoded), size))
        with self._sending:
            descriptors: List[int] = []
            if self.own.has_unsent():
                encoded, descriptors = self._with_files(header, self.own.take_unsent())
            pieces = [_HEAD.pack(len(encoded), size, len(descriptors)), encoded, *body]
            if self._free or self._left:
                pieces.extend(self._take_left())
            self._write(pieces, descriptors)
        if self._free or self._left:
            self.flush()

    def _with_files(self, header: Header, unsent: List[Tuple[int, int, int]]) -> Tuple[bytes, List[int]]:
        while len(unsent) > MOST_DESCRIPTORS:
            batch = [unsent.pop() for _ in range(MOST_DESCRIPTORS)]
            early = _encode_json({"t": "release", "files": [file[:2] for file in batch]}).encode()
            self._write([_HEAD.pack(len(early), 0, len(batch)), early], [file[2] for file in batch])
        header["files"] = [file[:2] for file in unsent]
        return _encode_json(header).encode(), [file[2] for file in unsent]

    def _take_left(self) -> List[bytes]:
        messages: List[Header] = []
        slots: List[Place] = []
        while self._free:
            slots.append(self._free.popleft())
        if slots:
            messages.append({"t": "release", "slots": slots})
        while self._left:
            messages.append(self._left.popleft())
        pieces = []
        for message in messages:
            encoded = _encode_json(message).encode()
            pieces.append(_HEAD.pack(len(encoded), 0, 0) + encoded)
        return pieces

    def _write(self, pieces: List[Any], descriptors: List[int]) -> None:
        if len(pieces) > _MOST_PIECES:
            pieces = [b"".join(pieces)]
        try:
            if self._socket is None:
                return
            if descriptors:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                sent = self._socket.sendmsg(pieces, ancillary)
            else:
                sent = self._socket.sendmsg(pieces)
            if sent < sum(map(len, pieces)):
                self._socket.sendall(memoryview(b"".join(pieces))[sent:])
        except OSError:
            os._exit(1)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def leave(self, message: Header) -> None:
        """Send a message without a body, or leave it to the thread that is sending. It may be called anywhere, also by __del__."""
        self._left.append(message)
        self.flush()

    def _release(self, place: Place) -> None:
        self._free.append(place)
        if self._idle:
            self.flush()

    def flush(self) -> None:
        """Send what was left, unless a thread that sends will do it."""
        while (self._free or self._left) and self._sending.acquire(False):
            try:
                self._write(self._take_left(), [])
            finally:
                self._sending.release()

    # Reading

    def wait(self, found: Callable[[], Optional[Found]], idle: bool = False) -> Found:
        """Return what found returns once that is not None. It is called with the turn held, after each message."""
        if idle:
            self._idle = True
            self.flush()
        turn = self.turn
        turn.acquire()
        try:
            while True:
                value = found()
                if value is not None:
                    return value
                if self._reading:
                    self._waiting += 1
                    turn.wait()
                    self._waiting -= 1
                    continue
                self._reading = True
                turn.release()
                try:
                    header, body = self._read()
                finally:
                    turn.acquire()
                    self._reading = False
                self._dispatch(header, body)
                while self._has_frame():
                    self._dispatch(*self._read())
                if self._waiting:
                    turn.notify_all()
        finally:
            if idle:
                self._idle = False
            if self._waiting:
                turn.notify_all()  # one of them reads on
            if self._loop is not None and self._end > self._begin:
                # The socket does not tell of what is in the buffer.
                soon = self._loop.call_soon if self._in_loop() else self._loop.call_soon_threadsafe
                soon(self.poll)
            turn.release()

    def poll(self) -> None:
        """Pass on what has come already, unless a thread reads anyway. Of a frame that has begun it awaits the rest."""
        with self.turn:
            if self._reading or self._socket is None:
                return
            while self._end > self._begin or self._receive(socket.MSG_DONTWAIT):
                self._dispatch(*self._read())
            if self._waiting:
                self.turn.notify_all()

    def watch(self, loop: Any) -> None:
        """Have the event loop of this thread watch the socket."""
        assert self._socket is not None
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._idle = True  # what is left goes at once: a loop has no time at which its messages go
        loop.add_reader(self._socket.fileno(), self.poll)
        loop.call_soon(self.poll)

    def unwatch(self) -> None:
        """End what watch has begun."""
        assert self._socket is not None and self._loop is not None
        self._loop.remove_reader(self._socket.fileno())
        self._loop = None
        self._idle = False

    def _in_loop(self) -> bool:
        return self._loop_thread == threading.get_ident()

    def wake(self, function: Callable[[], object]) -> None:
        """Run what wakes a coroutine in the thread of its event loop, which need not be the one that has read the message."""
        if self._loop is None or self._in_loop():
            function()
        else:
            self._loop.call_soon_threadsafe(function)

    def is_watched_by(self, loop: Any) -> bool:
        """Say whether this is the loop that watches the socket."""
        return loop is self._loop

    def _dispatch(self, header: Header, body: bytearray) -> None:
        handler = self.handlers.get(header.get("t", ""))
        if handler is None:
            raise ProtocolError("a message of the unknown type %r" % (header.get("t"),))
        files = header.get("files")
        if files and header["t"] != "drop":
            for number, size in files:
                self.files.add(number, size, self._descriptors.popleft())
        handler(header, body)

    def _has_frame(self) -> bool:
        """Say whether the buffer has a whole frame."""
        held = self._end - self._begin
        if held < _HEAD.size:
            return False
        head, body, _ = _HEAD.unpack_from(self._buffer, self._begin)
        return held >= _HEAD.size + head + body

    def _read(self) -> Tuple[Header, bytearray]:
        """Read one frame."""
        while self._end - self._begin < _HEAD.size:
            self._receive(0)
        head, body, descriptors = _HEAD.unpack_from(self._buffer, self._begin)
        if head > LONGEST_HEADER or body > LONGEST_BODY or descriptors > MOST_DESCRIPTORS:
            raise ProtocolError("a frame of %d and %d bytes with %d descriptors" % (head, body, descriptors))
        self._begin += _HEAD.size
        header, _ = _decode_json(str(self._take(head), "utf-8"))
        content = self._take(body)
        if len(self._descriptors) < descriptors:
            raise ProtocolError("%d descriptors came where %d were announced" % (len(self._descriptors), descriptors))
        return header, content

    def _take(self, size: int) -> bytearray:
        """Return the next bytes, in memory of their own."""
        begin = self._begin
        if self._end - begin >= size:
            self._begin = begin + size
            return self._buffer[begin : begin + size]
        taken = bytearray(size)
        at = self._end - begin
        taken[:at] = self._view[begin : self._end]
        self._begin = self._end = 0
        view = memoryview(taken)
        while at < size:
            at += self._receive_into(view[at:], 0)
        return taken

    def _receive(self, flags: int) -> int:
        """Read what there is into the buffer; without waiting it may be nothing."""
        if self._begin:
            held = self._end - self._begin
            if held:
                self._view[:held] = bytes(self._view[self._begin : self._end])
            self._begin, self._end = 0, held
        size = self._receive_into(self._view[self._end :] if self._end else self._view, flags)
        self._end += size
        return size

    def _receive_into(self, into: memoryview, flags: int) -> int:
        try:
            assert self._socket is not None
            size, ancillary, _, _ = self._socket.recvmsg_into([into], _ANCILLARY_SIZE, flags | socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return 0
        except OSError:
            os._exit(1)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
                self._descriptors.extend(descriptors)
        if not size:
            os._exit(0)  # the worker has closed it or is gone: nobody waits for anything that this process does
        return size

    # Memory

    def _released(self, header: Header, _: bytearray) -> None:
        places = header.get("slots")
        if places:
            self.own.give_back(places)
            dropped = self.own.take_dropped()
            if dropped:
                self._left.append({"t": "drop", "files": dropped})

    def _dropped(self, header: Header, _: bytearray) -> None:
        for number in header["files"]:
            self.files.drop(number)

    def forget(self) -> None:
        """Close the socket in a process that was forked: it is the parent's."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._idle = False
        # Threads that held these are not in this process.
        self._sending = threading.Lock()
        self.turn = threading.Condition(threading.Lock())
        self._reading = False
        self.own = StubFiles()
