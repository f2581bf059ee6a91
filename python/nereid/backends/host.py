"""What the frameworks' backends have in common: packages, parameters, and batches."""

import importlib
import json
import os
import sys
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from ..stub.errors import Refused

Arrays = Dict[str, np.ndarray]


def framework(backend: str, module: str, package: str) -> Any:
    """Import a framework; where it is missing, refuse the model with what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Refused(
            "the backend %s needs the package %s, which %s cannot import (%s): install it there (%s -m pip install %s), or name a Python "
            "that has it, by the model's parameter EXECUTION_ENV_PATH or by --backend-config=%s,python-path=FILE"
            % (backend, package, sys.executable, error, sys.executable, package, backend)
        ) from None


class Parameters:
    """The parameters of a model, each of which is asked for by its name."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._given = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}

    def text(self, key: str, default: str = "") -> str:
        """Return a parameter as it is."""
        return self._given.get(key, default)

    def boolean(self, key: str, default: bool = False) -> bool:
        """Return a switch, in the spellings of Triton's backends."""
        text = self._given.get(key)
        if text is None:
            return default
        if text.lower() in ("true", "on", "yes", "1"):
            return True
        if text.lower() in ("false", "off", "no", "0"):
            return False
        raise Refused("parameter %s: failed to convert '%s' to boolean" % (key, text))

    def count(self, key: str) -> int:
        """Return a number, 0 where there is none."""
        text = self._given.get(key, "0")
        if not text.isdigit():
            raise Refused("parameter %s is '%s': give a number, 0 for the framework's choice" % (key, text))
        return int(text)

    def warn_of(self, idle: Sequence[str]) -> None:
        """Say which of the parameters given change nothing."""
        there = [key for key in idle if key in self._given]
        if there:
            pb_utils.Logger.log_warn("these parameters of the model have no effect here: %s" % ", ".join(there))


class Host:
    """A model that a framework runs. A subclass opens it, and runs one batch."""

    failure = "execute failure: "

    def initialize(self, args: Dict[str, str]) -> None:
        """Open the model."""
        self.config: Dict[str, Any] = json.loads(args["model_config"])
        self.name = args["model_name"]
        self.parameters = Parameters(self.config)
        self.gpu = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None
        self.outputs = {output["name"]: output["data_type"] for output in self.config["output"]}
        self._batches = self.config.get("max_batch_size", 0) > 0
        self.open(model_file(self.config))

    def open(self, path: str) -> None:
        """Open the model's file."""
        raise NotImplementedError

    def run(self, inputs: Arrays) -> Arrays:
        """Return the outputs for a batch."""
        raise NotImplementedError

    def execute(self, requests: List[Any]) -> List[Any]:
        """Run a model that batches once for all requests, another for each."""
        if self._batches and len(requests) > 1:
            return self._run_together(requests)
        return [self._run_alone(request) for request in requests]

    def _run_alone(self, request: Any) -> Any:
        try:
            return responses([self.run({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})])[0]
        except Exception as error:
            return self._failed(error)

    def _run_together(self, requests: List[Any]) -> List[Any]:
        try:
            inputs, sizes = together([{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests])
            return responses(apart(self.run(inputs), sizes))
        except Exception as error:
            return [self._failed(error) for _ in requests]

    def _failed(self, error: Exception) -> Any:
        if isinstance(error, InvalidModel):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(self.failure + str(error)))


class InvalidModel(Exception):
    """What the configuration says of the outputs is not what the model gives."""


def model_file(config: Dict[str, Any]) -> str:
    """Return the path of the model's file, or directory."""
    return os.path.join(pb_utils.get_model_dir(), config["default_model_filename"])


def state_names(config: Dict[str, Any], key: str) -> List[str]:
    """Return the names, by input_name or output_name, of a sequence model's states."""
    return [state[key] for state in config.get("sequence_batching", {}).get("state", ())]


def input_names(config: Dict[str, Any]) -> List[str]:
    """Return the names of all that a model is given: inputs, and controls and states of sequences."""
    controls = config.get("sequence_batching", {}).get("control_input", ())
    return [tensor["name"] for tensor in (*config["input"], *controls)] + state_names(config, "input_name")


def output_names(config: Dict[str, Any]) -> List[str]:
    """Return the names of all that a model gives: outputs, and states of sequences."""
    return [output["name"] for output in config["output"]] + state_names(config, "output_name")


def together(requests: Sequence[Arrays]) -> Tuple[Arrays, List[int]]:
    """Return the inputs of requests as those of one, and how many rows each has."""
    sizes = [len(next(iter(request.values()))) for request in requests]
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}, sizes


def apart(outputs: Arrays, sizes: Sequence[int]) -> List[Arrays]:
    """Return the outputs of each request."""
    rows = sum(sizes)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise InvalidModel(
                "output '%s' has shape %s for a batch of %d: its first dimension has to be the batch's, or max_batch_size 0"
                % (name, list(array.shape), rows)
            )
    ends = np.cumsum(sizes).tolist()
    return [{name: array[end - size : end] for name, array in outputs.items()} for end, size in zip(ends, sizes)]


def responses(outputs: Sequence[Arrays]) -> List[Any]:
    """Return responses. What has no dimension has one element in its configuration."""
    return [
        pb_utils.InferenceResponse([pb_utils.Tensor(name, array if array.ndim else array.reshape(1)) for name, array in given.items()])
        for given in outputs
    ]
