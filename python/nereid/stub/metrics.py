"""Metrics of models, which the server shows among its own."""

import itertools
import math
from typing import Any, Dict, List, Optional

from . import process
from .enums import Enum
from .errors import TritonModelException

_numbers = itertools.count(1)


class MetricKind(Enum):
    """What a metric does."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()


class Metric:
    """One metric of a family. It ends when the model drops it."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_number", "_kind", "_family", "_alone")

    def __init__(self) -> None:
        raise TypeError("Metric: No constructor defined! Use MetricFamily.Metric()")

    def increment(self, value: float) -> None:
        """Add to a counter or a gauge."""
        if self._kind is MetricFamily.HISTOGRAM:
            raise TritonModelException("Failed to increment metric value: a histogram has no increment")
        if self._kind is MetricFamily.COUNTER and not value >= 0:
            raise TritonModelException("Failed to increment metric value: a counter can only be incremented by what is not negative")
        self._sample("add", value)

    def set(self, value: float) -> None:
        """Set a gauge."""
        if self._kind is not MetricFamily.GAUGE:
            raise TritonModelException("Failed to set metric value: only a gauge can be set")
        self._sample("set", value)

    def observe(self, value: float) -> None:
        """Add a value to a histogram."""
        if self._kind is not MetricFamily.HISTOGRAM:
            raise TritonModelException("Failed to observe metric value: only a histogram can observe")
        self._sample("observe", value)

    def value(self) -> float:
        """Return the value of a counter or a gauge."""
        if self._kind is MetricFamily.HISTOGRAM:
            raise TritonModelException("Failed to get metric value: a histogram has no single value")
        if not process.connected():
            return self._alone
        return float(process.ask({"t": "value", "metric": self._number}))

    def _sample(self, op: str, value: float) -> None:
        number = float(value)
        if not math.isfinite(number):
            raise TritonModelException("a metric takes finite values, not %r" % (number,))
        if process.connected():
            process.tell({"t": "sample", "metric": self._number, "op": op, "value": number})
        else:
            self._alone = number if op == "set" else self._alone + number

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None and process.connected():
            process.connection().leave({"t": "sample", "metric": number, "op": "end"})


class MetricFamily:
    """A family of metrics."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_number", "_kind")  # the number is of one that the worker has taken

    COUNTER = MetricKind("COUNTER", 0)
    GAUGE = MetricKind("GAUGE", 1)
    HISTOGRAM = MetricKind("HISTOGRAM", 2)

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(name, str) or not isinstance(description, str) or not isinstance(kind, MetricKind):
            raise TypeError("MetricFamily(name: str, description: str, kind: MetricKind) was called otherwise")
        self._kind = kind
        number = next(_numbers)
        _make("MetricFamily", {"t": "family", "family": number, "name": name, "text": description, "kind": kind.name})
        self._number = number

    def __del__(self) -> None:
        number = getattr(self, "_number", None)
        if number is not None and process.connected():
            process.connection().leave({"t": "family", "family": number, "op": "end"})

    def Metric(self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None) -> Metric:
        """Return a metric of the family; a histogram has the upper bounds of its buckets."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self._kind is not self.HISTOGRAM and buckets:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if self._kind is self.HISTOGRAM and buckets is None:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        bounds = [float(bound) for bound in buckets or ()]
        if any(not math.isfinite(bound) for bound in bounds) or any(a >= b for a, b in zip(bounds, bounds[1:])):
            raise TritonModelException("Failed to create metric. Buckets must be finite and ascend.")
        metric = _new(Metric)
        metric._kind = self._kind
        metric._family = self
        metric._alone = 0.0  # its value where there is no server
        number = next(_numbers)
        header: Dict[str, Any] = {"t": "metric", "family": self._number, "metric": number}
        if labels:
            header["labels"] = {str(key): str(value) for key, value in labels.items()}
        if bounds:
            header["buckets"] = bounds
        _make("Metric", header)
        metric._number = number
        return metric


def _make(what: str, header: Dict[str, Any]) -> None:
    """Have the worker, if there is one, make something. What contradicts another model's is an exception."""
    if process.connected():
        process.ask(header, failing="Error when creating %s: " % what)


_new = Metric.__new__
