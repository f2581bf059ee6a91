"""This process: the worker it belongs to, and the model that it runs. What models call at module level finds them here."""

import itertools
from typing import Any, Dict, Optional, Sequence

from .errors import FORKED, TritonModelException


class _Process:
    """What join has set: the things that a process has one of."""

    connection: Any = None
    calls: Any = None
    forked = False
    model_directory: Optional[str] = None
    settings: Dict[str, str] = {}
    numbers = itertools.count(1)
    replies: Dict[int, Any] = {}  # guarded by the connection's turn


def join(connection: Any, calls: Any) -> None:
    """Say whose process this is."""
    _Process.connection = connection
    _Process.calls = calls
    connection.handlers["reply"] = _reply


def takes_calls(calls: Any) -> Any:
    """Have another take the calls of models, where there is no worker; return who did."""
    before, _Process.calls = _Process.calls, calls
    return before


def leave() -> None:
    """Have no worker: this process was forked, and the connection is its parent's."""
    _Process.connection.forget()
    _Process.connection = _Process.calls = None
    _Process.forked = True


def runs_model_in(directory: str, settings: Dict[str, str]) -> None:
    """Say where the model's files lie, and which settings its backend has."""
    _Process.model_directory = directory
    _Process.settings = settings


def settings() -> Dict[str, str]:
    """Return the settings of the model's backend."""
    return _Process.settings


def connection() -> Any:
    """Return the connection to the worker."""
    if _Process.connection is None:
        raise TritonModelException(FORKED if _Process.forked else "Cannot communicate with parent service")
    return _Process.connection


def connected() -> bool:
    """Say whether there is a worker: there is none where a model is imported by itself."""
    return _Process.connection is not None


def tell(message: Dict[str, Any]) -> None:
    """Send a message, if there is a worker."""
    if _Process.connection is not None:
        _Process.connection.send(message)


def calls() -> Any:
    """Return the calls of the process, or None without a worker."""
    if _Process.forked:
        raise TritonModelException(FORKED)
    return _Process.calls


def ask(header: Dict[str, Any], body: Sequence[Any] = (), failing: str = "") -> Any:
    """Send a message that has a reply, and return its value. An error is a TritonModelException, whose text begins with failing."""
    worker = connection()
    number = next(_Process.numbers)
    worker.send(dict(header, id=number), body)
    reply = worker.wait(lambda: _Process.replies.pop(number, None))
    if "error" in reply:
        raise TritonModelException(failing + reply["error"][1])
    return reply.get("value")


def _reply(header: Dict[str, Any], _: Any) -> None:
    _Process.replies[header["id"]] = header


def get_model_dir() -> str:
    """Return the directory of the model's version."""
    if _Process.model_directory is None:
        raise TritonModelException("this process runs no model")
    return _Process.model_directory
