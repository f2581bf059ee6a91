"""Requests and responses, as models see them and as messages have them."""

import json
import threading
from typing import Any, Dict, List, Optional, Sequence, Set, Union

from . import tensors
from .connection import Connection
from .enums import Enum
from .errors import TritonError, TritonModelException, code_named
from .tensors import Tensor

FLAG_SEQUENCE_START = 1
FLAG_SEQUENCE_END = 2
COMPLETE_FINAL = 1
RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2

# A request's sender begins with room for so many responses.
FIRST_ROOM = 32

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


class InferenceResponse:
    """A response: outputs, or an error."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_outputs", "_error", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Dict[str, Union[bool, int, float, str]]] = None,
    ) -> None:
        outputs = list(output_tensors)
        for output in outputs:
            if type(output) is not Tensor:
                if output is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                raise TypeError("InferenceResponse(): output_tensors must be a list of Tensors, and has a %s" % type(output).__name__)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError("InferenceResponse(): error must be a TritonError, not %s" % type(error).__name__)
        self._outputs = outputs
        self._error = error
        self._parameters = _checked(parameters) if parameters else None

    def output_tensors(self) -> List[Tensor]:
        """Return the outputs."""
        return self._outputs

    def has_error(self) -> bool:
        """Say whether it is an error."""
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        """Return the error, or None."""
        return self._error

    def parameters(self) -> str:
        """Return the parameters as JSON."""
        return json.dumps(self._parameters) if self._parameters else "{}"


def _checked(parameters: Any) -> Dict[str, Union[bool, int, float, str]]:
    if not isinstance(parameters, dict):
        raise TritonModelException("Expect parameters to have type dict, found type %s" % type(parameters))
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException("Expect parameters keys to have type str, found type %s" % type(key))
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException("Expect parameters values to have type bool/int/str, found type %s" % type(value))
    return dict(parameters)


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
        if flags:
            fields["flags"] = int(flags)
        if timeout:
            fields["timeout"] = int(timeout)
        if model_version != -1:
            fields["version"] = int(model_version)
        if preferred_memory is not None:
            fields["memory"] = preferred_memory._type.name.rsplit("_", 1)[1]
        if trace is not None and trace._parent:
            fields["trace"] = trace._parent
        if parameters is not None:
            fields["params"] = _checked(parameters)
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
        """Return the names of the outputs that were asked for."""
        return set(self._fields.get("outs", ()))

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

    __slots__ = ("connection", "number", "decoupled", "canceled", "open")

    def __init__(self, connection: Connection, number: int, decoupled: bool) -> None:
        self.connection = connection
        self.number = number
        self.decoupled = decoupled
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


def encode_response(
    connection: Connection, response: InferenceResponse, names: Optional[List[str]], body: List[Any]
) -> Dict[str, Any]:
    """Return a response as messages have it, with the outputs that were asked for."""
    error = response._error
    if error is not None:
        return {"error": [error._code.name, error._message]}
    outputs = response._outputs
    if names:
        outputs = [output for output in outputs if output._name in names]
    encoded: Dict[str, Any] = {"outs": tensors.encode(connection, outputs, body)} if outputs else {}
    if response._parameters:
        encoded["params"] = response._parameters
    return encoded


def decode_response(connection: Connection, fields: Dict[str, Any], body: bytearray) -> InferenceResponse:
    """Return the response of a message."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._outputs = []
    tensors.decode(connection, fields.get("outs", ()), body, 0, response._outputs)
    error = fields.get("error")
    response._error = TritonError(error[1], code_named(error[0])) if error else None
    response._parameters = fields.get("params")
    return response


class ResponseSender:
    """Sends the responses of one request, from any thread. A request that a model drops without an end fails."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_batch", "_position", "_names", "_lock", "_sent", "_closed")

    def __init__(self, batch: Batch, position: int, names: Optional[List[str]]) -> None:
        self._batch = batch
        self._position = position
        self._names = names
        self._lock = threading.Lock()  # held while a response is sent, so that none comes behind the final one
        self._sent = False
        self._closed = False
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
            self._check(response, flags)
            wanted = batch.connection.wait(lambda: self._reserve(response))
            header: Dict[str, Any] = {"t": "respond", "batch": batch.number, "request": self._position}
            body: List[Any] = []
            if response is not None and wanted:
                header["response"] = encode_response(batch.connection, response, self._names, body)
                self._sent = True
            if flags:
                header["final"] = True
                self.close()
            if len(header) > 3:
                batch.connection.send(header, body)

    def _check(self, response: Optional[InferenceResponse], flags: int) -> None:
        if response is None and not flags:
            raise TritonModelException("Inference Response object must be provided when the response flags is set to zero.")
        one = not self._batch.decoupled
        if one and response is not None and self._sent:
            raise TritonModelException("Unable to send response. Non-decoupled model cannot send more than one response.")
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if one and response is None and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )

    def _reserve(self, response: Optional[InferenceResponse]) -> Optional[bool]:
        """Return whether somebody waits for the response, or None if there is no room for it yet."""
        batch, position = self._batch, self._position
        if response is None or position in batch.canceled:
            return response is None
        if not batch.open[position]:
            return None
        batch.open[position] -= 1
        return True

    def close(self) -> None:
        """Have the request ended: nothing more may be sent."""
        self._closed = True
        self._batch.open.pop(self._position, None)

    def is_cancelled(self) -> bool:
        """Say whether the request was canceled: nobody waits for its responses."""
        return self._batch.is_canceled(self._position)

    def __del__(self) -> None:
        if self._closed:
            return
        batch = self._batch
        batch.open.pop(self._position, None)
        message: Dict[str, Any] = {"t": "respond", "batch": batch.number, "request": self._position, "final": True}
        if batch.decoupled or not self._sent:
            message["response"] = {"error": ["INTERNAL", _NOT_ENDED]}
        batch.connection.leave(message)
