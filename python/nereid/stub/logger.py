"""The server's log, for models."""

import sys
from typing import Any

from . import process
from .enums import Enum


class LogLevel(Enum):
    """How important a line is."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()


class Logger:
    """Writes to the server's log; without a server, to standard error."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()

    LogLevel = LogLevel
    INFO = LogLevel("INFO", 0)
    WARNING = LogLevel("WARNING", 1)
    ERROR = LogLevel("ERROR", 2)
    VERBOSE = LogLevel("VERBOSE", 3)

    def __init__(self) -> None:
        raise TypeError("Logger has no objects: call its functions, as in Logger.log_info(message)")

    @staticmethod
    def log(message: str, level: LogLevel = INFO) -> None:
        """Write a line of a level."""
        _write(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        """Write a line for information."""
        _write(message, Logger.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Write a warning."""
        _write(message, Logger.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Write an error."""
        _write(message, Logger.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Write a line that only a verbose log has."""
        _write(message, Logger.VERBOSE)


def _write(message: Any, level: Any) -> None:
    if not isinstance(message, str):
        raise TypeError("Logger: message must be a str, not %s" % type(message).__name__)
    if not isinstance(level, LogLevel):
        raise TypeError("Logger: level must be one of Logger's levels, not %s" % type(level).__name__)
    frame = sys._getframe(2)
    file, line = frame.f_code.co_filename, frame.f_lineno
    if process.connected():
        process.connection().send({"t": "log", "level": level.name, "text": message, "file": file, "line": line})
    else:
        print("%s %s:%d %s" % (level.name, file, line, message), file=sys.stderr)
