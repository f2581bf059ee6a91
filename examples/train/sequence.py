"""The layers that a network over text needs besides those of network.py.

Tensors are float32 in the order batch, position, channel. All texts of a batch have
one length; another batch may have another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from network import Array, Parameter, he_normal


class Embedding:
    """A row of trained numbers for each byte value."""

    VALUES = 256

    def __init__(self, rng: np.random.Generator, channels: int) -> None:
        rows = rng.normal(0.0, 1.0, (self.VALUES, channels))
        self.weight = Parameter(rows.astype(np.float32))

    def forward(self, x: NDArray[np.uint8]) -> Array:
        self._x = x
        return self.weight.value[x]

    def backward(self, gradient: Array) -> Array:
        """Stores the rows' gradients; bytes have none, so the result is empty."""
        values = self._x.ravel()
        columns = gradient.reshape(len(values), -1).T
        sums = [np.bincount(values, column, self.VALUES) for column in columns]
        self.weight.gradient = np.stack(sums, axis=1).astype(gradient.dtype)
        return np.empty(0, gradient.dtype)

    def parameters(self) -> list[Parameter]:
        return [self.weight]


class Conv1d:
    """Convolution along the positions, padded by half its odd width, and a bias."""

    def __init__(
        self,
        rng: np.random.Generator,
        inputs: int,
        outputs: int,
        width: int,
        stride: int = 1,
    ) -> None:
        shape = (outputs, inputs, width)
        self.weight = Parameter(he_normal(rng, shape, fan_in=inputs * width))
        self.bias = Parameter(np.zeros(outputs, np.float32))
        self.stride = stride

    @property
    def padding(self) -> int:
        """How many zeros go before the first and after the last position."""
        return self.weight.value.shape[2] // 2

    def forward(self, x: Array) -> Array:
        outputs, inputs, width = self.weight.value.shape
        self._positions = x.shape[1]
        padded = np.pad(x, ((0, 0), (self.padding, self.padding), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
        # With the channels last, a window is one stretch of memory: quick to copy.
        windows = windows[:, :: self.stride].swapaxes(2, 3)
        self._windows = windows.reshape(*windows.shape[:2], width * inputs)
        return self._windows @ self._matrix().T + self.bias.value

    def backward(self, gradient: Array) -> Array:
        outputs, inputs, width = self.weight.value.shape
        self.bias.gradient = gradient.sum(axis=(0, 1))
        rows = gradient.reshape(-1, outputs)
        product = rows.T @ self._windows.reshape(len(rows), -1)
        self.weight.gradient = product.reshape(outputs, width, inputs).swapaxes(1, 2)
        windows = gradient @ self._matrix()
        return self._collect(windows.reshape(*gradient.shape[:2], width, inputs))

    def _collect(self, windows: Array) -> Array:
        """Adds the windows' gradients up at the positions that they came from."""
        n, count, width, inputs = windows.shape
        padded = np.zeros(
            (n, self._positions + 2 * self.padding, inputs), windows.dtype
        )
        reach = (count - 1) * self.stride + 1
        for at in range(width):
            padded[:, at : at + reach : self.stride] += windows[:, :, at]
        return padded[:, self.padding : self.padding + self._positions]

    def _matrix(self) -> Array:
        """Returns the weight with a row for each output, in the order of a window."""
        return self.weight.value.swapaxes(1, 2).reshape(len(self.weight.value), -1)

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]


class GlobalPool:
    """Each channel's largest value over all positions, then each channel's mean."""

    def forward(self, x: Array) -> Array:
        self._shape = x.shape
        self._winners = x.argmax(axis=1)[:, None]
        largest = np.take_along_axis(x, self._winners, axis=1)[:, 0]
        return np.concatenate([largest, x.mean(axis=1)], axis=1)

    def backward(self, gradient: Array) -> Array:
        _, positions, channels = self._shape
        largest, mean = gradient[:, None, :channels], gradient[:, None, channels:]
        result = np.repeat(mean / positions, positions, axis=1)
        kept = np.take_along_axis(result, self._winners, axis=1)
        np.put_along_axis(result, self._winners, kept + largest, axis=1)
        return result

    def parameters(self) -> list[Parameter]:
        return []
