"""Calls of models to other models."""

import collections
import contextvars
import itertools
from typing import Any, Deque, Dict, List, Optional, Tuple

from . import process, responses, tensors
from .connection import Connection, Header
from .errors import TritonError, TritonModelException
from .responses import InferenceResponse

# The worker is told of results that the model has taken when there are so many of them, or bytes: half of what it sends before it
# waits.
_TOLD_RESULTS = 16
_TOLD_BYTES = 8 << 20

_OUTSIDE = "BLS is only supported during the 'execute' function."

# The batch that a thread, or a task of an event loop, executes.
executing: "contextvars.ContextVar[Any]" = contextvars.ContextVar("executing", default=None)


class Calls:
    """The calls of this process that have not ended."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._numbers = itertools.count(1)
        self._calls: Dict[int, "Call"] = {}  # guarded by the connection's turn
        # The batches that may be answered still, the newest last; the instance owns them.
        self.batches: Dict[int, Any] = {}
        connection.handlers["result"] = self._result

    def make(self, fields: Header, inputs: List[tensors.Tensor], decoupled: bool) -> "Call":
        """Ask for a call."""
        header = dict(fields, t="call", call=next(self._numbers))
        self._join(header)
        if decoupled:
            header["decoupled"] = True
        body: List[Any] = []
        header["ins"] = tensors.encode(self.connection, inputs, body)
        call = self._calls[header["call"]] = Call(self, header["call"])
        self.connection.send(header, body)
        return call

    def _join(self, header: Header) -> None:
        """Name the batch that calls: the one that is executed here, or else, in a thread of the model, one with an open sender."""
        batch = executing.get()
        if batch is None:
            batches = list(self.batches.values())
            batch = next((one for one in reversed(batches) if one.running or one.open), None)
        if batch is None:
            raise TritonModelException(_OUTSIDE)
        header["batch"] = batch.number
        if batch.running:
            return
        position = next(iter(list(batch.open)), None)
        if position is None:
            raise TritonModelException(_OUTSIDE)
        header["request"] = position

    def _result(self, header: Header, body: bytearray) -> None:
        fields = header.get("response")
        # Decoded even if nobody waits for it: so its memory is released.
        response = None if fields is None else responses.decode(self.connection, fields, body)
        final = header.get("final", False)
        size = sum(output[3][-1] for output in (fields or {}).get("outs", ()))
        call = self._calls.get(header["call"])
        if call is None:
            return
        if final:
            del self._calls[header["call"]]
        call.take(response, final, size)

    def forget(self, number: int) -> bool:
        """Take no more results of a call; say whether it had not ended."""
        return self._calls.pop(number, None) is not None


class Call:
    """One call."""

    __slots__ = ("_calls", "number", "_responses", "_ended", "_waiter", "_taken", "_taken_bytes")

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self.number = number
        self._responses: Deque[Tuple[InferenceResponse, int]] = collections.deque()
        self._ended = False
        self._waiter: Any = None  # a future of the event loop, where a coroutine waits
        # What the worker has not been told of.
        self._taken = 0
        self._taken_bytes = 0

    def take(self, response: Optional[InferenceResponse], final: bool, size: int) -> None:
        """Take a result of so many bytes, with the connection's turn held."""
        if response is None and final:
            response = InferenceResponse()  # Triton's iterators end with an empty response as well
        if response is not None:
            self._responses.append((response, size))
        self._ended = final
        if self._waiter is not None:
            self._calls.connection.wake(self._wake)

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    def next(self) -> Optional[InferenceResponse]:
        """Wait for the next response; None is the end."""
        return self._given(self._calls.connection.wait(self._found))

    async def next_async(self) -> Optional[InferenceResponse]:
        """Wait for the next response without holding up the event loop."""
        import asyncio  # only here: it takes longer to import than the rest of the stub

        connection = self._calls.connection
        loop = asyncio.get_running_loop()
        if not connection.is_watched_by(loop):
            # A loop of the model's own, which does not watch the socket.
            return await loop.run_in_executor(None, self.next)
        while True:
            with connection.turn:
                found = self._found()
                if found is None:
                    self._waiter = loop.create_future()
            if found is not None:
                return self._given(found)
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.hang_up()
                raise

    def _found(self) -> Optional[Tuple[Optional[InferenceResponse], int]]:
        if self._responses:
            return self._responses.popleft()
        return (None, 0) if self._ended else None

    def _given(self, found: Tuple[Optional[InferenceResponse], int]) -> Optional[InferenceResponse]:
        """Return what was found, and tell the worker from time to time that it may send more."""
        response, size = found
        if not self._ended:
            self._taken += 1
            self._taken_bytes += size
            if self._taken >= _TOLD_RESULTS or self._taken_bytes >= _TOLD_BYTES:
                header = {"t": "room", "call": self.number, "n": self._taken}
                self._taken = self._taken_bytes = 0
                self._calls.connection.leave(header)
        return response

    def hang_up(self) -> None:
        """Cancel the call, if it has not ended."""
        if self._calls.forget(self.number):
            self._ended = True
            self._calls.connection.leave({"t": "hang_up", "call": self.number})


class ResponseIterator:
    """The responses of a call, as they come; the last may be empty.

    As Triton's, it begins anew when it is iterated over again after its end. So it keeps the responses as long as it lives.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("_call", "_canceled", "_kept", "_at", "_exhausted")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._canceled = False
        self._kept: List[InferenceResponse] = []
        self._at = 0
        self._exhausted = False

    def __iter__(self) -> "ResponseIterator":
        if self._exhausted:
            self._at = 0
            self._exhausted = False
        return self

    def __next__(self) -> InferenceResponse:
        if self._at == len(self._kept):
            self._keep(self._call.next(), StopIteration)
        return self._step()

    def __aiter__(self) -> "ResponseIterator":
        return self.__iter__()

    async def __anext__(self) -> InferenceResponse:
        if self._at == len(self._kept):
            self._keep(await self._call.next_async(), StopAsyncIteration)
        return self._step()

    async def begin(self) -> None:
        """Await the first response, for the iteration to begin with."""
        response = await self._call.next_async()
        if response is not None:
            self._kept.append(response)

    def _keep(self, response: Optional[InferenceResponse], end: Any) -> None:
        if response is None:
            if not self._canceled:
                self._exhausted = True
                raise end("Iteration is done for the responses.")
            self._canceled = False
            response = InferenceResponse(error=TritonError("the call was canceled", TritonError.CANCELLED))
        self._kept.append(response)

    def _step(self) -> InferenceResponse:
        self._at += 1
        return self._kept[self._at - 1]

    def cancel(self) -> None:
        """Cancel the call. The iteration ends, behind what has come already, with an error of the code CANCELLED."""
        self._canceled = self._canceled or not self._call._ended
        self._call.hang_up()

    def __del__(self) -> None:
        self._call.hang_up()


def call(fields: Header, inputs: List[tensors.Tensor], decoupled: bool) -> Any:
    """Call another model, and wait for its response; of a decoupled call return an iterator at once."""
    made = _calls().make(fields, inputs, decoupled)
    if decoupled:
        return ResponseIterator(made)
    response = made.next()
    return response if response is not None else _nothing()


async def _finish(made: Call) -> InferenceResponse:
    response = await made.next_async()
    return response if response is not None else _nothing()


async def _begin(made: Call) -> ResponseIterator:
    """Return the iterator once it has its first response: until then a model that iterates without awaiting holds up no other."""
    responses = ResponseIterator(made)
    await responses.begin()
    return responses


def call_async(fields: Header, inputs: List[tensors.Tensor], decoupled: bool) -> Any:
    """Call another model, and return what awaits its response; of a decoupled call, what awaits the first and gives the iterator."""
    import asyncio

    loop = asyncio.get_running_loop()
    made = _calls().make(fields, inputs, decoupled)
    return loop.create_task(_begin(made) if decoupled else _finish(made))


def _nothing() -> InferenceResponse:
    return InferenceResponse(error=TritonError("An error occurred while performing BLS request."))


def _calls() -> Calls:
    calls = process.calls()
    if calls is None:
        raise TritonModelException(_OUTSIDE)
    return calls
