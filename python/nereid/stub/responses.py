"""Responses, as models see them and as messages have them."""

import json
from typing import Any, Dict, List, Optional, Sequence, Union

from . import tensors
from .connection import Connection
from .errors import TritonError, TritonModelException, code_named
from .tensors import Tensor


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
        self._parameters = None if parameters is None else checked(parameters)

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


def checked(parameters: Any) -> Dict[str, Union[bool, int, float, str]]:
    """Return parameters, or refuse what is none."""
    if not isinstance(parameters, dict):
        raise TritonModelException("Expect parameters to be a dict, got %s" % type(parameters))
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException("Expect parameters keys to have type str, found type %s" % type(key))
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException("Expect parameters values to have type bool/int/str, found type %s" % type(value))
    return dict(parameters)


def encode(
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


def decode(connection: Connection, fields: Dict[str, Any], body: bytearray) -> InferenceResponse:
    """Return the response of a message."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._outputs = []
    tensors.decode(connection, fields.get("outs", ()), body, 0, response._outputs)
    error = fields.get("error")
    response._error = TritonError(error[1], code_named(error[0])) if error else None
    response._parameters = fields.get("params")
    return response
