"""The functions that models import beside the classes."""

from typing import Any, Dict, Optional, Union

import numpy as np

from . import datatypes
from .requests import InferenceRequest, InferenceResponse
from .tensors import Tensor

TRITON_STRING_TO_NUMPY: Dict[str, Any] = {
    "TYPE_" + name: kind.type for name, kind in datatypes.NUMPY.items() if name not in ("BOOL", "BYTES", "BF16")
}
TRITON_STRING_TO_NUMPY["TYPE_BOOL"] = bool
TRITON_STRING_TO_NUMPY["TYPE_STRING"] = np.object_


def serialize_byte_tensor(input_tensor: np.ndarray) -> Any:
    """Return the elements of an array of strings, each behind its length in 4 bytes; None for another array."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype == np.object_ or input_tensor.dtype.type == np.bytes_:
        return datatypes.serialize(input_tensor)
    return None


def deserialize_bytes_tensor(encoded_tensor: Union[bytes, bytearray, memoryview]) -> np.ndarray:
    """Return the array of one dimension of bytes that serialize_byte_tensor has encoded."""
    elements = datatypes.deserialize(encoded_tensor, 0, len(encoded_tensor))
    return datatypes.to_array(elements, [len(elements)])


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """Return a request's input of this name, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    """Return a response's output of this name, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def _named(listed: Any, name: str) -> Optional[Dict[str, Any]]:
    for properties in listed:
        if properties["name"] == name:
            return properties
    return None


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return the configuration of a model's input, or None."""
    return _named(model_config.get("input", ()), name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    """Return the configuration of a model's output, or None."""
    return _named(model_config.get("output", ()), name)


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    """Say whether the configuration makes the model decoupled."""
    return model_config.get("model_transaction_policy", {}).get("decoupled", False)


def triton_to_numpy_type(data_type: int) -> Any:
    """Return numpy's type for a datatype's number in configurations, or None."""
    return datatypes.NUMBERS.get(int(data_type))


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """Return a datatype's number in configurations for numpy's type, or None."""
    kind = np.dtype(data_type)
    if kind.type is np.bytes_:
        kind = np.dtype(np.object_)
    name = datatypes.NAMES.get(kind)
    return datatypes.number_of(name) if name else None


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """Return numpy's type for a datatype's name in configurations."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]
