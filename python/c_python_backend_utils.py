"""The classes of triton_python_backend_utils, under the name of the module that has them in Triton."""

from nereid.stub.errors import TritonError, TritonModelException
from nereid.stub.logger import Logger
from nereid.stub.requests import (
    MEMORY_CPU as TRITONSERVER_MEMORY_CPU,
    MEMORY_GPU as TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceResponse,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    ResponseSender as InferenceResponseSender,
)
from nereid.stub.tensors import Tensor

__all__ = [
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "PreferredMemory",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "Tensor",
    "TritonError",
    "TritonModelException",
]
