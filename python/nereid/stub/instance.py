"""The instance: what the worker asks of this process, one message after another."""

import collections
import inspect
import json
import os
from typing import Any, Deque, Dict, List, Optional, Set, Tuple

from . import calls, execution, process, requests
from .config import ModelConfig
from .connection import Connection, Header
from .errors import Refused, text_of, traceback_of
from .model import Model
from .requests import Batch

Message = Tuple[Header, List[Any]]
Work = Tuple[Header, bytearray]


class Instance:
    """One instance of a model."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._calls = calls.Calls(connection)
        self._model: Any = None
        self._execute: Any = None
        self._decoupled = False
        self._outputs: List[str] = []
        self._async = False
        # Guarded by the connection's turn.
        self._work: Deque[Work] = collections.deque()
        self._batches: Dict[int, Batch] = self._calls.batches
        # In an event loop, owned by its thread.
        self._woken: Any = None
        self._tasks: Set[Any] = set()
        for kind in ("start", "complete", "batch", "ready", "finalize"):
            connection.handlers[kind] = self._queue
        connection.handlers["cancel"] = self._cancel
        connection.handlers["room"] = self._make_room
        process.join(connection, self._calls)

    def run(self) -> None:
        """Do what the worker asks for, until it asks for the end."""
        send = self._connection.send
        while True:
            header, body = self._connection.wait(self._next, idle=True)
            kind = header["t"]
            if kind == "batch":
                # What ran held is gone when this is sent: the memory of the inputs goes back with it.
                send(*self._ran(header, body))
            elif kind == "ready":
                send(self._ready(header))
            elif kind == "start":
                send(self._start(header))
                if self._async:
                    _run(self._serve())
                    return
            elif kind == "finalize":
                self._finalize()
                return
            else:
                send(self._complete(header))
                return
            header = body = None  # type: ignore[assignment]

    # Messages

    def _next(self) -> Optional[Work]:
        return self._work.popleft() if self._work else None

    def _queue(self, header: Header, body: bytearray) -> None:
        if header["t"] == "batch":
            number = header["batch"]
            self._batches[number] = Batch(self._connection, number, self._decoupled, self._outputs)
        self._work.append((header, body))
        if self._woken is not None:
            self._connection.wake(self._woken.set)

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
        process.runs_model_in(header["dir"], header.get("settings", {}))
        return Model(header["file"], header["args"], header["dir"])

    def _start(self, header: Header) -> Header:
        self._decoupled = header.get("decoupled", False)
        try:
            self._outputs = [output["name"] for output in json.loads(header["args"]["model_config"]).get("output", ())]
            self._model = self._load(header)
            self._model.initialize(header["args"])
        except BaseException as error:
            return _failed(error)
        self._execute = self._model.object.execute
        started: Header = {"t": "started"}
        if self._model.asks():
            started["asks"] = True
        if self._model.is_async():
            self._async = started["async"] = True
        return started

    def _complete(self, header: Header) -> Header:
        try:
            model = self._load(header)
            complete = getattr(model.type, "auto_complete_config", None)
            if complete is None:
                return {"t": "completed", "config": header["config"]}
            config = complete(ModelConfig(header["config"]))
            if not isinstance(config, ModelConfig):
                raise Refused("auto_complete_config function in model '%s' must return a valid pb.ModelConfig object." % model.name)
            return {"t": "completed", "config": json.dumps(config.as_dict())}
        except BaseException as error:
            return _failed(error)

    def _finalize(self) -> None:
        finalize = getattr(self._model and self._model.object, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except BaseException as error:
                self._log("finalize failed", error)
        self._connection.send({"t": "finalized"})

    def _log(self, what: str, error: BaseException) -> None:
        self._connection.send({"t": "log", "level": "ERROR", "text": "%s: %s" % (what, traceback_of(error))})

    def _ready(self, header: Header) -> Header:
        try:
            ready = self._model.object.is_ready()
            return _readiness(header, _run(_value_of(ready)) if inspect.isawaitable(ready) else ready)
        except BaseException as error:
            return _unready(header, error)

    # Executing

    def _ran(self, header: Header, body: bytearray) -> Message:
        """Execute a batch, and return the message that says so."""
        batch = self._batches[header["batch"]]
        received = requests.decode(batch, header["requests"], body)
        if len(batch.canceled) == len(received):
            self._returned(batch)
            return execution.canceled(batch, received)
        calls.executing.set(batch)
        try:
            message = execution.responded(self._model, batch, received, self._execute(received))
        except BaseException as error:
            message = execution.failed(self._model, batch, received, error)
        calls.executing.set(None)
        self._returned(batch)
        return message

    def _returned(self, batch: Batch) -> None:
        batch.running = False
        if not batch.open:
            self._batches.pop(batch.number, None)

    # Executing in an event loop

    async def _serve(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._connection.watch(loop)
        while True:
            work = self._next()
            if work is None:
                self._woken.clear()
                if not self._work:
                    await self._woken.wait()
                continue
            header, body = work
            kind = header["t"]
            if kind == "finalize":
                self._connection.unwatch()
                self._finalize()
                os._exit(0)
            task = loop.create_task(self._execute_task(header, body) if kind == "batch" else self._ready_task(header))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            header = body = work = None  # type: ignore[assignment]

    async def _execute_task(self, header: Header, body: bytearray) -> None:
        batch = self._batches[header["batch"]]
        if self._decoupled:
            await self._run_decoupled(batch, header, body)
        else:
            self._connection.send(*await self._ran_async(batch, header, body))

    async def _ran_async(self, batch: Batch, header: Header, body: bytearray) -> Message:
        received = requests.decode(batch, header["requests"], body)
        calls.executing.set(batch)
        try:
            message = execution.responded(self._model, batch, received, await self._execute(received))
        except BaseException as error:
            message = execution.failed(self._model, batch, received, error)
        calls.executing.set(None)
        self._returned(batch)
        return message

    async def _run_decoupled(self, batch: Batch, header: Header, body: bytearray) -> None:
        """Execute a batch beside others: the instance takes its next at once."""
        received = requests.decode(batch, header["requests"], body)
        calls.executing.set(batch)
        self._returned(batch)
        self._connection.send({"t": "ran", "batch": batch.number})
        try:
            execution.check_nothing(self._model, await self._execute(received))
        except BaseException as error:
            self._log("execute failed", error)
            execution.fail_open(self._model, received, error)

    async def _ready_task(self, header: Header) -> None:
        try:
            reply = _readiness(header, await _value_of(self._model.object.is_ready()))
        except BaseException as error:
            reply = _unready(header, error)
        self._connection.send(reply)


def _run(coroutine: Any) -> Any:
    import asyncio  # only for models that need it: it takes longer to import than the rest of the stub

    return asyncio.run(coroutine)


async def _value_of(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _readiness(header: Header, ready: Any) -> Header:
    if not isinstance(ready, bool):
        raise Refused("is_ready() must return a boolean value")
    return {"t": "reply", "id": header["id"], "value": ready}


def _unready(header: Header, error: BaseException) -> Header:
    return {"t": "reply", "id": header["id"], "error": ["INTERNAL", text_of(error)]}


def _failed(error: BaseException) -> Header:
    return {"t": "failed", "text": text_of(error), "traceback": traceback_of(error)}
