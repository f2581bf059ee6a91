"""Run a Python model without a server, as its tests do.

    from nereid.testing import Model

    with Model("models/upper") as model:
        outputs = model(TEXT=np.array([b"hello"], np.object_))

`auto_complete_config`, `initialize`, `execute` and `finalize` of `model.py` run in this process. What only a server has is not there: calls
of other models fail, and `config.pbtxt` is not read: give what the model needs of it as `config`.
"""

import asyncio
import copy
import inspect
import json
import os
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils

from .stub import process
from .stub.config import ModelConfig
from .stub.model import Model as _Loaded

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class ModelError(Exception):
    """The error that a model has answered a request with."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.message())
        self.code = error.code()


class _Sender:
    """Keeps the responses of one request."""

    def __init__(self) -> None:
        self.responses: List[Any] = []
        self.ended = False

    def send(self, response: Any = None, flags: int = 0) -> None:
        if self.ended:
            raise pb_utils.TritonModelException("Unable to send response. Response sender has been closed.")
        if response is None and not flags:
            raise pb_utils.TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None:
            self.responses.append(response)
        self.ended = bool(flags & _FINAL)

    def is_cancelled(self) -> bool:
        return False


class _Request(pb_utils.InferenceRequest):
    """A request as if a client had sent it."""

    __slots__ = ("sender",)

    def __init__(self, model: str, outputs: List[str], inputs: Dict[str, Any]) -> None:
        tensors = [pb_utils.Tensor(name, _array(value)) for name, value in inputs.items()]
        super().__init__(inputs=tensors, requested_output_names=outputs, model_name=model)
        self.sender: Optional[_Sender] = None

    def get_response_sender(self) -> Any:
        if self.sender is None:
            self.sender = _Sender()
        return self.sender


def _array(value: Any) -> np.ndarray:
    """Return an array as a client sends it: text is bytes in UTF-8."""
    array = np.asarray(value)
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(np.object_) if array.dtype.kind == "S" else array


class Model:
    """A model, initialized from its directory."""

    def __init__(self, directory: str, version: Optional[int] = None, config: Optional[Dict[str, Any]] = None) -> None:
        directory = os.path.abspath(directory)
        version = _newest(directory) if version is None else version
        name = os.path.basename(directory)
        file = os.path.join(directory, str(version), "model.py")
        self._args = {
            "model_name": name,
            "model_version": str(version),
            "model_repository": directory,
            "model_instance_name": name + "_0",
            "model_instance_kind": "CPU",
            "model_instance_device_id": "0",
        }
        process.runs_model_in(os.path.dirname(file))
        self._loaded = _Loaded(file, self._args)
        self.config = self._complete(dict({"name": name, "max_batch_size": 0, "input": [], "output": []}, **copy.deepcopy(config or {})))
        self._loaded.initialize(dict(self._args, model_config=json.dumps(self.config)))

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Finalize the model."""
        finalize = getattr(self._loaded.object, "finalize", None)
        if finalize is not None:
            finalize()

    def __call__(self, **inputs: Any) -> Dict[str, np.ndarray]:
        """Return the outputs of the one response to one request; raise ModelError if that is an error."""
        responses = self.responses(**inputs)
        if len(responses) != 1:
            raise AssertionError("the model gave %d responses to the request: take them from responses()" % len(responses))
        return responses[0]

    def responses(self, **inputs: Any) -> List[Dict[str, np.ndarray]]:
        """Return the outputs of each response to one request, of which decoupled models give any number."""
        return self.batch([inputs])[0]

    def batch(self, requests: Sequence[Dict[str, Any]]) -> List[List[Dict[str, np.ndarray]]]:
        """Have requests executed together, and return the responses to each."""
        outputs = [output["name"] for output in self.config["output"]]
        made = [_Request(self._args["model_name"], outputs, inputs) for inputs in requests]
        returned = self._loaded.object.execute(made)
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
        if returned is None:
            returned = [None] * len(made)
        if len(returned) != len(made):
            raise AssertionError("execute got %d requests and returned %d responses" % (len(made), len(returned)))
        return [_responses(request, response) for request, response in zip(made, returned)]

    def _complete(self, config: Dict[str, Any]) -> Dict[str, Any]:
        complete = getattr(self._loaded.type, "auto_complete_config", None)
        if complete is None:
            return config
        completed = complete(ModelConfig(json.dumps(config)))
        if not isinstance(completed, ModelConfig):
            raise AssertionError("auto_complete_config must return the configuration that it was given")
        return completed.as_dict()


def _newest(directory: str) -> int:
    versions = [int(name) for name in os.listdir(directory) if name.isdigit()]
    if not versions:
        raise FileNotFoundError("%s has no version: put model.py into a directory such as %s" % (directory, os.path.join(directory, "1")))
    return max(versions)


def _responses(request: _Request, response: Any) -> List[Dict[str, np.ndarray]]:
    if response is not None:
        given = [response]
    elif request.sender is not None and request.sender.ended:
        given = request.sender.responses
    else:
        raise AssertionError(
            "the model has not ended the request: return a response for it, or have its sender send one with "
            "TRITONSERVER_RESPONSE_COMPLETE_FINAL before execute returns"
        )
    for one in given:
        if one.has_error():
            raise ModelError(one.error())
    return [{tensor.name(): tensor.as_numpy() for tensor in one.output_tensors()} for one in given]
