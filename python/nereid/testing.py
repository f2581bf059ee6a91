"""Run a Python model without a server, as its tests do.

    from nereid.testing import Model

    with Model("models/upper") as model:
        outputs = model(TEXT=np.array([b"hello"], np.object_))

`auto_complete_config`, `initialize`, `execute` and `finalize` of `model.py` run in this process. What only a server has is not there:
`config.pbtxt` is not read, so give what the model needs of it as `config`; and a model that calls others finds those that are given as `models`.
"""

import asyncio
import concurrent.futures
import copy
import inspect
import json
import os
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np
import triton_python_backend_utils as pb_utils

from .stub import errors, process
from .stub.config import ModelConfig
from .stub.model import Model as _Loaded

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class ModelError(Exception):
    """The error that a model has answered a request with."""

    def __init__(self, error: Any) -> None:
        super().__init__(error.message())
        self.code = error.code()


class Request:
    """What a client may send beside inputs, for batch().

    `canceled_after` has the client go away when it has got so many responses.
    """

    def __init__(
        self, inputs: Mapping[str, Any], parameters: Optional[Dict[str, Any]] = None, id: str = "", canceled_after: Optional[int] = None
    ) -> None:
        self.inputs = inputs
        self.parameters = parameters
        self.id = id
        self.canceled_after = canceled_after


class _Exchange:
    """What one request has got. It is over when the model has ended it, or has dropped it with its sender."""

    def __init__(self, canceled_after: Optional[int]) -> None:
        self.responses: List[Any] = []
        self.ended = False
        self.over = threading.Event()
        self._canceled_after = canceled_after

    def is_canceled(self) -> bool:
        return self._canceled_after is not None and len(self.responses) >= self._canceled_after


class _Hold:
    """The model's hold on an exchange: the request has it, and its sender."""

    def __init__(self, exchange: _Exchange) -> None:
        self.exchange = exchange

    def __del__(self) -> None:
        self.exchange.over.set()


class _Sender:
    """Keeps the responses of one request."""

    def __init__(self, hold: _Hold) -> None:
        self._hold = hold

    def send(self, response: Any = None, flags: int = 0) -> None:
        exchange = self._hold.exchange
        if exchange.ended:
            raise pb_utils.TritonModelException("Unable to send response. Response sender has been closed.")
        if response is None and not flags:
            raise pb_utils.TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None:
            exchange.responses.append(response)
        if flags & _FINAL:
            exchange.ended = True
            exchange.over.set()

    def is_cancelled(self) -> bool:
        return self._hold.exchange.is_canceled()


class _Request(pb_utils.InferenceRequest):
    """A request as if a client had sent it."""

    __slots__ = ("_hold",)

    def __init__(self, model: str, outputs: List[str], sent: Request, exchange: _Exchange) -> None:
        tensors = [pb_utils.Tensor(name, _array(value)) for name, value in sent.inputs.items()]
        super().__init__(
            request_id=sent.id, inputs=tensors, requested_output_names=outputs, model_name=model, parameters=sent.parameters
        )
        self._hold = _Hold(exchange)

    def get_response_sender(self) -> Any:
        return _Sender(self._hold)

    def is_cancelled(self) -> bool:
        return self._hold.exchange.is_canceled()


def _array(value: Any) -> np.ndarray:
    """Return an array as a client sends it: text is bytes in UTF-8."""
    array = np.asarray(value)
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    return array.astype(np.object_) if array.dtype.kind == "S" else array


class _Called:
    """The responses to a call, all of which have come."""

    _ended = True

    def __init__(self, responses: List[Any]) -> None:
        self._left = iter(responses)

    def next(self) -> Optional[Any]:
        return next(self._left, None)

    async def next_async(self) -> Optional[Any]:
        return self.next()

    def hang_up(self) -> None:
        pass


class _Calls:
    """The models that a model may call, in the place of a server's."""

    def __init__(self, models: Mapping[str, Callable[..., Any]]) -> None:
        self._models = models

    def make(self, fields: Dict[str, Any], inputs: List[Any], decoupled: bool) -> _Called:
        """Have the model answer at once."""
        try:
            answers = self._answers(fields, {one.name(): one.as_numpy() for one in inputs}, decoupled)
        except ModelError as error:
            return _Called([_failed(str(error), error.code)])
        except Exception as error:
            return _Called([_failed(errors.text_of(error), pb_utils.TritonError.INTERNAL)])
        wanted = fields["outs"]
        return _Called(
            [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor(name, _array(value)) for name, value in outputs.items() if not wanted or name in wanted]
                )
                for outputs in answers
            ]
        )

    def _answers(self, fields: Dict[str, Any], inputs: Dict[str, Any], decoupled: bool) -> Sequence[Mapping[str, Any]]:
        called = self._models.get(fields["model"])
        if called is None:
            text = "Failed for execute the inference request. Model '%s' is not ready." % fields["model"]
            raise ModelError(pb_utils.TritonError(text, pb_utils.TritonError.NOT_FOUND))
        if isinstance(called, Model):
            answers = called.batch([Request(inputs, fields.get("params"), fields.get("id", ""))])[0]
        else:
            answer = called(**inputs)
            answers = [answer] if isinstance(answer, Mapping) else list(answer)
        if not decoupled and len(answers) != 1:
            raise AssertionError("'%s' was called for one response and gave %d: call it with decoupled=True" % (fields["model"], len(answers)))
        return answers


def _failed(text: str, code: int) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


class Model:
    """A model, initialized from its directory.

    `models` are those that it may call, by their names: another Model, or a function that gets the inputs as keywords and returns the
    outputs by name, or a list of these for each response. An exception is an error. `timeout` is how many seconds threads of the model may take
    to end a request when `execute` has returned. `gpu` is the number of the GPU that the instance is told it is on; None is the CPUs.
    """

    def __init__(
        self,
        directory: str,
        version: Optional[int] = None,
        config: Optional[Dict[str, Any]] = None,
        models: Optional[Mapping[str, Callable[..., Any]]] = None,
        timeout: float = 60,
        gpu: Optional[int] = None,
    ) -> None:
        directory = os.path.abspath(directory)
        version = _newest(directory) if version is None else version
        name = os.path.basename(directory)
        file = os.path.join(directory, str(version), "model.py")
        self._args = {
            "model_name": name,
            "model_version": str(version),
            "model_repository": directory,
            "model_instance_name": name + "_0",
            "model_instance_kind": "CPU" if gpu is None else "GPU",
            "model_instance_device_id": str(gpu or 0),
        }
        self._calls = _Calls(models or {})
        self._timeout = timeout
        process.runs_model_in(os.path.dirname(file), {})
        self._loaded = _Loaded(file, self._args, os.path.dirname(file))
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

    def batch(self, requests: Sequence[Union[Request, Mapping[str, Any]]]) -> List[List[Dict[str, np.ndarray]]]:
        """Have requests executed together, each a Request or its inputs by name, and return the responses to each."""
        sent = [one if isinstance(one, Request) else Request(one) for one in requests]
        exchanges = [_Exchange(one.canceled_after) for one in sent]
        before = process.takes_calls(self._calls)
        try:
            returned = self._execute(sent, exchanges)
            return [self._responses(exchange, response) for exchange, response in zip(exchanges, returned)]
        finally:
            process.takes_calls(before)

    def _execute(self, sent: List[Request], exchanges: List[_Exchange]) -> List[Any]:
        """Return what execute does. The requests are the model's alone: when it has dropped one, nobody has it any more."""
        outputs = [output["name"] for output in self.config["output"]]
        made = [_Request(self._args["model_name"], outputs, one, exchange) for one, exchange in zip(sent, exchanges)]
        returned = self._loaded.object.execute(made)
        if inspect.iscoroutine(returned):
            returned = _run(returned)
        if returned is None:
            returned = [None] * len(made)
        if len(returned) != len(made):
            raise AssertionError("execute got %d requests and returned %d responses" % (len(made), len(returned)))
        return returned

    def _responses(self, exchange: _Exchange, response: Any) -> List[Dict[str, np.ndarray]]:
        if response is not None:
            given = [response]
        else:
            if not exchange.over.wait(self._timeout):
                raise AssertionError("the model has not ended the request %g s after execute had returned" % self._timeout)
            if not exchange.ended:
                raise AssertionError(
                    "the model has dropped the request without ending it: return a response for it, or have its sender send one with "
                    "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
                )
            given = exchange.responses
        for one in given:
            if one.has_error():
                raise ModelError(one.error())
        return [{tensor.name(): tensor.as_numpy() for tensor in one.output_tensors()} for one in given]

    def _complete(self, config: Dict[str, Any]) -> Dict[str, Any]:
        complete = getattr(self._loaded.type, "auto_complete_config", None)
        if complete is None:
            return config
        completed = complete(ModelConfig(json.dumps(config)))
        if not isinstance(completed, ModelConfig):
            raise AssertionError("auto_complete_config must return the configuration that it was given")
        return completed.as_dict()


def _run(coroutine: Any) -> Any:
    """Run a coroutine, in another thread where one is running that calls this model."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _newest(directory: str) -> int:
    versions = [int(name) for name in os.listdir(directory) if name.isdigit()]
    if not versions:
        raise FileNotFoundError("%s has no version: put model.py into a directory such as %s" % (directory, os.path.join(directory, "1")))
    return max(versions)
