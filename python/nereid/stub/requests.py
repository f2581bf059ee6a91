"""Requests and responses, as models see them and as messages have them."""

import json
import threading
from operator import index
from typing import Any, Dict, List, Optional, Sequence, Set, Union

from . import calls, responses, tensors
from .connection import Connection
from .enums import Enum
from .errors import TritonModelException
from .responses import InferenceResponse, checked
from .tensors import Tensor

FLAG_SEQUENCE_START = 1
FLAG_SEQUENCE_END = 2
COMPLETE_FINAL = 1
RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2

# A request's sender begins with room for so many responses.
FIRST_ROOM = 32

_CLOSED = "Unable to send response. Response sender has been closed."
_NOT_ENDED = (
    "the model dropped the request without ending it: return a response for it, or have its response sender send one with "
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
)


class MemoryType(Enum):
    """Where memory is."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()


MEMORY_GPU = MemoryType("TRITONSERVER_MEMORY_GPU", 0)
MEMORY_CPU = MemoryType("TRITONSERVER_MEMORY_CPU", 1)


class PreferredMemory:
    """Where a call's outputs should lie: a hint."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_type", "_device")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError("PreferredMemory(): preferred_memory_type must be TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU")
        self._type = preferred_memory_type
        self._device = int(preferred_device_id)


class InferenceTrace:
    """The trace that a request belongs to."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_parent",)

    def __init__(self, parent: str = "") -> None:
        self._parent = parent

    def get_context(self) -> Optional[str]:
        """Return the trace's context as JSON, W3C's traceparent in it; None for a request that is not traced."""
        return json.dumps({"traceparent": self._parent}) if self._parent else None


class InferenceRequest:
    """A request: one that the model got, or one that it makes to call another model."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_fields", "_inputs", "_sender", "_batch", "_position", "_release")

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Sequence[Tensor] = None,  # type: ignore[assignment]
        requested_output_names: Sequence[str] = None,  # type: ignore[assignment]
        model_name: str = None,  # type: ignore[assignment]
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Optional[PreferredMemory] = None,
        trace: Optional[InferenceTrace] = None,
        parameters: Optional[Dict[str, Union[bool, int, str]]] = None,
    ) -> None:
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("InferenceRequest() needs inputs, requested_output_names and model_name")
        if correlation_id is None:
            raise TypeError("InferenceRequest(): correlation_id must be an int or a str, not None")
        if not isinstance(request_id, str) or not isinstance(model_name, str):
            raise TypeError(
                "InferenceRequest(): request_id and model_name must be a str, not %s and %s"
                % (type(request_id).__name__, type(model_name).__name__)
            )
        if not isinstance(correlation_id, (int, str)):
            raise TritonModelException("Correlation ID must be integer or string")
        for one in inputs:
            if one is None:
                raise TritonModelException(
                    "Input tensor for request with id '%s' and model name '%s' should not be empty." % (request_id, model_name)
                )
            if type(one) is not Tensor:
                raise TypeError("InferenceRequest(): inputs must be a list of Tensors, and has a %s" % type(one).__name__)
        for name in requested_output_names:
            if not isinstance(name, str):
                raise TypeError("InferenceRequest(): requested_output_names must be a list of str, and has a %s" % type(name).__name__)
            if not name:
                raise TritonModelException(
                    "Requested output name for request with id '%s' and model name '%s' should not be empty."
                    % (request_id, model_name)
                )
        fields: Dict[str, Any] = {"model": model_name}
        if request_id:
            fields["id"] = request_id
        if correlation_id:
            fields["corr"] = correlation_id
        flags, timeout, model_version = index(flags), index(timeout), index(model_version)
        if flags:
            fields["flags"] = flags
        if timeout:
            fields["timeout"] = timeout
        if model_version != -1:
            fields["version"] = str(model_version)
        if preferred_memory is not None:
            fields["memory"] = preferred_memory._type.name.rsplit("_", 1)[1]
        if trace is not None and trace._parent:
            fields["trace"] = trace._parent
        if parameters is not None:
            fields["params"] = checked(parameters)
        fields["outs"] = list(requested_output_names)
        self._fields = fields
        self._inputs = list(inputs)
        self._sender: Optional[ResponseSender] = None
        self._batch: Any = None
        self._position = 0
        self._release = RELEASE_ALL

    def inputs(self) -> List[Tensor]:
        """Return the inputs."""
        return self._inputs

    def request_id(self) -> str:
        """Return the ID that the client gave."""
        return self._fields.get("id", "")

    def correlation_id(self) -> Union[int, str]:
        """Return the ID of the request's sequence, 0 if it has none."""
        return self._fields.get("corr", 0)

    def requested_output_names(self) -> Set[str]:
        """Return the names of the outputs that were asked for: all of the model's where the client named none."""
        names = self._fields.get("outs")
        return set(self._batch.outputs if names is None else names)

    def flags(self) -> int:
        """Return the flags of the sequence."""
        return self._fields.get("flags", 0)

    def set_flags(self, flags: int) -> None:
        """Set the flags of the sequence."""
        self._fields["flags"] = int(flags)

    def timeout(self) -> int:
        """Return the timeout in microseconds that the client set, 0 if it set none."""
        return self._fields.get("timeout", 0)

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(self._fields.get("params", {}))

    def trace(self) -> InferenceTrace:
        """Return the trace of the request, to be given to the calls that it makes."""
        return InferenceTrace(self._fields.get("trace", ""))

    def set_release_flags(self, flags: int) -> None:
        """Say what becomes of the request when execute returns: it is done, or it is to be executed again."""
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException("unknown release flags %r: they are TRITONSERVER_REQUEST_RELEASE_ALL or ..._RESCHEDULE" % (flags,))
        self._release = flags

    def exec(self, decoupled: bool = False) -> Any:
        """Call the model and return its response; of a decoupled call, an iterator over the responses."""
        return calls.call(self._fields, self._inputs, decoupled)

    def async_exec(self, decoupled: bool = False) -> Any:
        """Call the model from a coroutine, and return what awaits what exec would return."""
        return calls.call_async(self._fields, self._inputs, decoupled)

    def is_cancelled(self) -> bool:
        """Say whether the request was canceled: nobody waits for its responses."""
        batch = self._batch
        return batch is not None and batch.is_canceled(self._position)

    def get_response_sender(self) -> "ResponseSender":
        """Return the sender of the request's responses."""
        sender = self._sender
        if sender is None:
            if self._batch is None:
                raise TritonModelException("a request that the model made itself has no response sender")
            sender = self._sender = ResponseSender(self._batch, self._position, self._fields.get("outs"))
        return sender


class Batch:
    """What the requests of one execution have in common, as long as one of them may be answered."""

    __slots__ = ("connection", "number", "decoupled", "outputs", "running", "canceled", "open")

    def __init__(self, connection: Connection, number: int, decoupled: bool, outputs: List[str]) -> None:
        self.connection = connection
        self.number = number
        self.decoupled = decoupled
        self.outputs = outputs  # the names of the model's
        self.running = True  # until execute has returned
        # By position, both guarded by the connection's turn: who was canceled, and how many responses more may be sent by the
        # senders that have not ended their request.
        self.canceled: Set[int] = set()
        self.open: Dict[int, int] = {}

    def is_canceled(self, position: int) -> bool:
        """Say whether the request at a position was canceled, by all that has come."""
        if position not in self.canceled:
            self.connection.poll()
        return position in self.canceled


_new = InferenceRequest.__new__


def decode(batch: Batch, listed: List[Dict[str, Any]], body: bytearray) -> List[InferenceRequest]:
    """Return the requests of a message."""
    connection = batch.connection
    requests = []
    at = 0
    for position, fields in enumerate(listed):
        request = _new(InferenceRequest)
        request._fields = fields
        inputs: List[Tensor] = []
        request._inputs = inputs
        at = tensors.decode(connection, fields.get("ins", ()), body, at, inputs)
        request._sender = ResponseSender(batch, position, fields.get("outs")) if batch.decoupled else None
        request._batch = batch
        request._position = position
        request._release = RELEASE_ALL
        requests.append(request)
    return requests


class ResponseSender:
    """Sends the responses of one request, from any thread. A request that a model drops without an end fails."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_batch", "_position", "_names", "_lock", "_sent", "_closed", "unended")

    def __init__(self, batch: Batch, position: int, names: Optional[List[str]]) -> None:
        self._batch = batch
        self._position = position
        self._names = names
        self._lock = threading.Lock()  # held while a response is sent, so that none comes behind the final one
        self._sent = False
        self._closed = False
        self.unended = _NOT_ENDED  # the error of a request that is dropped without an end
        batch.open[position] = FIRST_ROOM

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Send a response, and with TRITONSERVER_RESPONSE_COMPLETE_FINAL end the request.

        It waits while responses are sent faster than they are taken.
        """
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError("send(): response must be an InferenceResponse, not %s" % type(response).__name__)
        batch = self._batch
        with self._lock:
            self.check(response, flags)
            wanted = batch.connection.wait(lambda: self._reserve(response))
            header: Dict[str, Any] = {"t": "respond", "batch": batch.number, "request": self._position}
            body: List[Any] = []
            if response is not None and wanted:
                header["response"] = responses.encode(batch.connection, response, self._names, body)
                self._sent = True
            if flags:
                header["final"] = True
                self.close()
            if len(header) > 3:
                batch.connection.send(header, body)

    def check(self, response: Optional[InferenceResponse], flags: int) -> None:
        """Refuse what may not be sent after what was sent."""
        if response is None and not flags:
            raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")
        one = not self._batch.decoupled
        if one and response is not None and self._sent:
            raise TritonModelException("Unable to send response. Non-decoupled model cannot send more than one response.")
        if self._closed:
            raise TritonModelException(_CLOSED)
        if one and response is None and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )

    def _reserve(self, response: Optional[InferenceResponse]) -> Optional[bool]:
        """Return whether somebody waits for the response, or None if there is no room for it yet."""
        batch, position = self._batch, self._position
        if response is None or position in batch.canceled:
            return response is None
        room = batch.open.get(position)
        if room is None:
            raise TritonModelException(_CLOSED)  # execute has failed meanwhile
        if not room:
            return None
        batch.open[position] = room - 1
        return True

    def close(self) -> None:
        """Have the request ended: nothing more may be sent."""
        self._closed = True
        self._batch.open.pop(self._position, None)

    def is_cancelled(self) -> bool:
        """Say whether the request was canceled: nobody waits for its responses."""
        return self._batch.is_canceled(self._position)

    def __del__(self) -> None:
        self.fail(self.unended)

    def end_if_answered(self) -> None:
        """End the request of a model that is not decoupled if it has its response: what fails later is not its error."""
        if self._sent and not self._batch.decoupled:
            self.fail("")

    def fail(self, text: str) -> None:
        """End the request with an error, unless it has ended. It may be called anywhere, also by __del__."""
        if self._closed:
            return
        self.close()
        batch = self._batch
        message: Dict[str, Any] = {"t": "respond", "batch": batch.number, "request": self._position, "final": True}
        if batch.decoupled or not self._sent:
            message["response"] = {"error": ["INTERNAL", text]}
        batch.connection.leave(message)
