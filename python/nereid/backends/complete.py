"""Configurations that are completed from what a model's file says."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ..stub import process
from ..stub.errors import Refused


class Declared(NamedTuple):
    """An input or output as the model declares it; -1 is a variable dimension, and no shape one of any rank."""

    name: str
    data_type: str
    shape: Optional[List[int]]


def complete(config: Any, inputs: Sequence[Declared], outputs: Sequence[Declared]) -> Any:
    """Fill in what the configuration leaves out, by the rules of Triton's backends."""
    given = config.as_dict()
    _complete_batch(given, [*inputs, *outputs])
    batches = given["max_batch_size"] > 0
    for kind, declared in (("input", inputs), ("output", outputs)):
        if not given.get(kind):
            given[kind] = [_tensor(given["name"], tensor, batches) for tensor in declared]
    return config


def _complete_batch(given: Dict[str, Any], declared: Sequence[Declared]) -> None:
    """Have a model batch whose inputs and outputs all have a variable first dimension."""
    size = given.setdefault("max_batch_size", 0)
    fixed = [tensor for tensor in declared if not tensor.shape or tensor.shape[0] != -1]
    if fixed:
        if size > 0:
            raise Refused(
                "autofill failed for model '%s': model does not support batching while non-zero max_batch_size is specified: set it to 0 "
                "or remove it; '%s' has shape %s in the model" % (given["name"], fixed[0].name, fixed[0].shape)
            )
        return
    if size == 0:
        given["max_batch_size"] = size = int(process.settings().get("default-max-batch-size", 4))
    if size > 1 and not any(key in given for key in ("dynamic_batching", "sequence_batching", "ensemble_scheduling")):
        given["dynamic_batching"] = {}


def _tensor(model: str, tensor: Declared, batches: bool) -> Dict[str, Any]:
    if tensor.shape is None:
        raise Refused(
            "autofill failed for model '%s': the rank of '%s' is not fixed in the model: list input and output in the configuration"
            % (model, tensor.name)
        )
    listed: Dict[str, Any] = {"name": tensor.name, "data_type": tensor.data_type, "dims": tensor.shape[1:] if batches else tensor.shape}
    if not listed["dims"]:
        listed["dims"] = [1]
        if batches:
            listed["reshape"] = {"shape": []}
    return listed
