"""The instance: what the worker asks of this process, one message after another."""

import collections
import json
import os
from typing import Any, Deque, Dict, List, Optional, Tuple

from . import process, requests
from .config import ModelConfig
from .connection import Connection, Header
from .errors import Refused, text_of, traceback_of
from .memory import ProtocolError
from .model import Model
from .requests import Batch, InferenceRequest, InferenceResponse

Message = Tuple[Header, List[Any]]


class Instance:
    """One instance of a model."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._model: Any = None
        self._execute: Any = None
        self._decoupled = False
        # Guarded by the connection's turn.
        self._work: Deque[Tuple[Header, bytearray]] = collections.deque()
        self._batches: Dict[int, Batch] = {}
        for kind in ("start", "complete", "batch", "ready", "finalize"):
            connection.handlers[kind] = self._queue
        connection.handlers["cancel"] = self._cancel
        connection.handlers["room"] = self._make_room

    def run(self) -> None:
        """Do what the worker asks for, until it asks for the end."""
        while True:
            header, body = self._connection.wait(self._next, idle=True)
            kind = header["t"]
            if kind == "batch":
                # What ran held is gone when this is sent: the memory of the inputs goes back with it.
                self._connection.send(*self._ran(header, body))
            elif kind == "start":
                self._connection.send(self._start(header))
            elif kind == "ready":
                self._connection.send(self._ready(header))
            elif kind == "finalize":
                self._finalize()
                self._connection.send({"t": "finalized"})
                return
            else:
                self._connection.send(self._complete(header))
                return
            header = body = None  # type: ignore[assignment]

    # Messages

    def _next(self) -> Optional[Tuple[Header, bytearray]]:
        return self._work.popleft() if self._work else None

    def _queue(self, header: Header, body: bytearray) -> None:
        if header["t"] == "batch":
            number = header["batch"]
            self._batches[number] = Batch(self._connection, number, self._decoupled)
        self._work.append((header, body))

    def _cancel(self, header: Header, _: bytearray) -> None:
        batch = self._batches.get(header["batch"])
        if batch is not None:
            batch.canceled.update(header["requests"])

    def _make_room(self, header: Header, _: bytearray) -> None:
        batch = self._batches.get(header["batch"])
        if batch is not None and header["request"] in batch.open:
            batch.open[header["request"]] += header["n"]

    # Starting and ending

    def _load(self, header: Header) -> Model:
        args = header["args"]
        process.join(self._connection, os.path.dirname(header["file"]))
        return Model(header["file"], args)

    def _start(self, header: Header) -> Header:
        self._decoupled = header.get("decoupled", False)
        try:
            self._model = self._load(header)
            self._model.initialize(header["args"])
        except BaseException as error:
            return _failed(error)
        self._execute = self._model.object.execute
        started: Header = {"t": "started"}
        if self._model.asks():
            started["asks"] = True
        if self._model.is_async():
            started["async"] = True
        return started

    def _complete(self, header: Header) -> Header:
        try:
            model = self._load(header)
            complete = getattr(model.type, "auto_complete_config", None)
            if complete is None:
                return {"t": "completed", "config": header["config"]}
            config = complete(ModelConfig(header["config"]))
            if not isinstance(config, ModelConfig):
                raise Refused(
                    "auto_complete_config function in model '%s' must return a valid pb.ModelConfig object." % model.name
                )
            return {"t": "completed", "config": json.dumps(config.as_dict())}
        except BaseException as error:
            return _failed(error)

    def _finalize(self) -> None:
        finalize = getattr(self._model and self._model.object, "finalize", None)
        if finalize is None:
            return
        try:
            finalize()
        except BaseException as error:
            self._connection.send({"t": "log", "level": "ERROR", "text": "finalize: " + traceback_of(error)})

    def _ready(self, header: Header) -> Header:
        reply: Header = {"t": "reply", "id": header["id"]}
        try:
            ready = self._model.object.is_ready()
            if not isinstance(ready, bool):
                raise Refused("is_ready() must return a boolean value")
            reply["value"] = ready
        except BaseException as error:
            reply["error"] = ["INTERNAL", text_of(error)]
        return reply

    # Executing

    def _ran(self, header: Header, body: bytearray) -> Message:
        """Execute a batch, and return the message that says so."""
        batch = self._batches[header["batch"]]
        received = requests.decode(batch, header["requests"], body)
        ran: Header = {"t": "ran", "batch": batch.number}
        pieces: List[Any] = []
        try:
            self._respond(received, self._execute(received), ran, pieces)
        except BaseException as error:
            self._fail(received, error, ran, pieces)
        if not batch.open:
            del self._batches[batch.number]
        return ran, pieces

    def _respond(self, received: List[InferenceRequest], returned: Any, ran: Header, pieces: List[Any]) -> None:
        """Put into ran what execute has returned."""
        if returned is None:
            returned = [None] * len(received)
        elif self._decoupled:
            raise Refused(
                "Python model '%s' is using the decoupled mode and the execute function must return None." % self._model.name
            )
        elif not isinstance(returned, list):
            raise Refused("Expected a list in the execute return, found type '%s'." % type(returned))
        elif len(returned) != len(received):
            raise Refused(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                "InferenceRequest(s) size is:%d, and InferenceResponse(s) size is:%d\n" % (len(received), len(returned))
            )
        responses: List[Any] = []
        again = []
        ran["responses"] = responses
        for position, response in enumerate(returned):
            request = received[position]
            if request._release == requests.RELEASE_RESCHEDULE:
                if response is not None:
                    raise Refused(
                        "Expected a None object in the execute function return list for reschduled request, found type '%s'."
                        % type(response)
                    )
                again.append(position)
                if request._sender is not None:
                    request._sender.close()
            elif response is None:
                request.get_response_sender()
            elif not isinstance(response, InferenceResponse):
                raise Refused(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type '%s'."
                    % type(response)
                )
            else:
                if request._sender is not None:
                    request._sender._check(response, requests.COMPLETE_FINAL)
                names = request._fields.get("outs")
                responses.append([position, requests.encode_response(self._connection, response, names, pieces), True])
        for position, _, _ in responses:
            sender = received[position]._sender
            if sender is not None:
                sender.close()
        if again:
            ran["again"] = again

    def _fail(self, received: List[InferenceRequest], error: BaseException, ran: Header, pieces: List[Any]) -> None:
        """Put into ran that all requests fail that have no end yet."""
        unused = []
        for _, response, _ in ran.pop("responses", ()):
            unused.extend(output[3][:2] for output in response.get("outs", ()) if len(output[3]) > 1)
        self._connection.own.give_back(unused)
        pieces.clear()
        for request in received:
            if request._sender is not None:
                request._sender.close()
        ran["error"] = [
            "INTERNAL",
            "Failed to process the request(s) for model '%s', message: %s" % (self._model.instance, text_of(error)),
        ]
        ran["traceback"] = traceback_of(error)


def _failed(error: BaseException) -> Header:
    return {"t": "failed", "text": text_of(error), "traceback": traceback_of(error)}
