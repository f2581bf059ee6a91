"""The classes of triton_python_backend_utils, under the name of the module that has them in Triton."""

from nereid.stub.calls import ResponseIterator
from nereid.stub.control import is_model_ready, load_model, unload_model
from nereid.stub.errors import TritonError, TritonModelException
from nereid.stub.logger import Logger
from nereid.stub.metrics import Metric, MetricFamily, MetricKind
from nereid.stub.requests import (
    MEMORY_CPU as TRITONSERVER_MEMORY_CPU,
    MEMORY_GPU as TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
    ResponseSender as InferenceResponseSender,
)
from nereid.stub.responses import InferenceResponse
from nereid.stub.tensors import Tensor

COUNTER = MetricFamily.COUNTER
GAUGE = MetricFamily.GAUGE
HISTOGRAM = MetricFamily.HISTOGRAM

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "unload_model",
]
