"""What Python models import as pb_utils: the interface of Triton's Python backend."""

from nereid.stub.config import ModelConfig
from nereid.stub.control import is_model_ready, load_model, unload_model
from nereid.stub.errors import TritonError, TritonModelException
from nereid.stub.helpers import (
    TRITON_STRING_TO_NUMPY,
    deserialize_bytes_tensor,
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_output_config_by_name,
    get_output_tensor_by_name,
    numpy_to_triton_type,
    serialize_byte_tensor,
    triton_string_to_numpy,
    triton_to_numpy_type,
    using_decoupled_model_transaction_policy,
)
from nereid.stub.logger import Logger
from nereid.stub.metrics import MetricFamily
from nereid.stub.process import get_model_dir
from nereid.stub.requests import (
    COMPLETE_FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL,
    FLAG_SEQUENCE_END as TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    FLAG_SEQUENCE_START as TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    MEMORY_CPU as TRITONSERVER_MEMORY_CPU,
    MEMORY_GPU as TRITONSERVER_MEMORY_GPU,
    RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL,
    RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    PreferredMemory,
)
from nereid.stub.responses import InferenceResponse
from nereid.stub.tensors import Tensor

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
