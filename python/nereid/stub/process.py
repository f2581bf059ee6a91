"""This process: the worker it belongs to, and the model that it runs. What models call at module level finds them here."""

from typing import Any, Optional

from .errors import TritonModelException


class _Process:
    """What join has set: the one thing that a process has one of."""

    connection: Any = None
    model_directory: Optional[str] = None


def join(connection: Any, model_directory: str) -> None:
    """Say whose process this is, and where the model's file lies."""
    _Process.connection = connection
    _Process.model_directory = model_directory


def connection() -> Any:
    """Return the connection to the worker."""
    if _Process.connection is None:
        raise TritonModelException("Cannot communicate with parent service")
    return _Process.connection


def connected() -> bool:
    """Say whether there is a worker: there is none where a model is imported by itself."""
    return _Process.connection is not None


def get_model_dir() -> str:
    """Return the directory of the model's version."""
    if _Process.model_directory is None:
        raise TritonModelException("this process runs no model")
    return _Process.model_directory
