"""Errors as models make them, and texts of errors as Triton's clients know them."""

import traceback
from types import TracebackType
from typing import Any, List, Optional

from .enums import Enum


FORKED = (
    "This process was forked by the model and has no connection to the server: call and control other models, and send responses, "
    "in the process that executes requests."
)


class TritonModelException(Exception):
    """What a model raises, in any of its functions, to say in its own words what is wrong."""

    __module__ = "c_python_backend_utils"


class ErrorCode(Enum):
    """The code of an error."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()


class TritonError:
    """The error of one response."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_message", "_code")

    UNKNOWN = ErrorCode("UNKNOWN", 0)
    INTERNAL = ErrorCode("INTERNAL", 1)
    NOT_FOUND = ErrorCode("NOT_FOUND", 2)
    INVALID_ARG = ErrorCode("INVALID_ARG", 3)
    UNAVAILABLE = ErrorCode("UNAVAILABLE", 4)
    UNSUPPORTED = ErrorCode("UNSUPPORTED", 5)
    ALREADY_EXISTS = ErrorCode("ALREADY_EXISTS", 6)
    CANCELLED = ErrorCode("CANCELLED", 7)

    def __init__(self, message: str, code: ErrorCode = INTERNAL) -> None:
        if not isinstance(message, str):
            raise TypeError("TritonError(): message must be a str, not %s" % type(message).__name__)
        if not isinstance(code, ErrorCode):
            raise TypeError("TritonError(): code must be one of TritonError's codes, not %s" % type(code).__name__)
        self._message = message
        self._code = code

    def code(self) -> ErrorCode:
        """Return the code."""
        return self._code

    def message(self) -> str:
        """Return the text."""
        return self._message


def code_named(name: str) -> ErrorCode:
    """Return the code with this name, UNKNOWN if there is none."""
    code = getattr(TritonError, name, None)
    return code if isinstance(code, ErrorCode) else TritonError.UNKNOWN


class Refused(Exception):
    """What the stub refuses of a model; the text alone says it."""


def text_of(error: BaseException) -> str:
    """Return an exception's type, text and places, as clients of Triton see them."""
    if type(error) is Refused:
        return str(error)
    text = "%s: %s" % (type(error).__name__, str(error) or "<EMPTY MESSAGE>")
    places = _places(error.__traceback__)
    return text + "\n\nAt:\n" + "".join(places) if places else text


def _places(trace: Optional[TracebackType]) -> List[str]:
    """Return the places of a traceback but the stub's own and those of an import, the innermost first."""
    places: List[str] = []
    while trace is not None:
        if not _is_own(trace):
            code = trace.tb_frame.f_code
            places.insert(0, "  %s(%d): %s\n" % (code.co_filename, trace.tb_lineno, code.co_name))
        trace = trace.tb_next
    return places


def _is_own(trace: TracebackType) -> bool:
    """Say whether a place is the stub's own, or that of an import."""
    name = str(trace.tb_frame.f_globals.get("__name__", ""))
    return name.startswith("nereid.stub.") or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback as Python prints it, from the model on."""
    trace = error.__traceback__
    while trace is not None and _is_own(trace):
        trace = trace.tb_next
    if trace is None and not isinstance(error, SyntaxError):
        trace = error.__traceback__  # no line of the model's is to blame
    formatted: Any = traceback.format_exception(type(error), error, trace)
    return "".join(formatted)
