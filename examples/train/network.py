"""A small convolutional network in NumPy: forward, backward, and nothing else.

Tensors are float32 in the order batch, channel, row, column. A layer keeps what its
last forward pass saw, because its backward pass needs it; so one network serves one
thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass(eq=False)
class Parameter:
    """A trained array and the gradient that the last backward pass left for it."""

    value: Array
    gradient: Array = field(init=False)

    def __post_init__(self) -> None:
        self.gradient = np.zeros_like(self.value)


class Layer(Protocol):
    """One step of a network."""

    def forward(self, x: Array) -> Array:
        """Returns the layer's output for x."""

    def backward(self, gradient: Array) -> Array:
        """Stores the parameters' gradients and returns the gradient of the input."""

    def parameters(self) -> list[Parameter]:
        """Returns what training may change; empty for a fixed function."""


def he_normal(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Array:
    """Draws weights whose scale suits a layer followed by ReLU (He et al., 2015)."""
    return rng.normal(0.0, np.sqrt(2.0 / fan_in), shape).astype(np.float32)


def convolve3x3(x: Array, kernel: Array) -> tuple[Array, Array]:
    """Correlates x with 3x3 kernels, zero-padded to keep rows and columns.

    Returns the result and the windows of x it was made from, which the gradient of
    the kernel needs again.
    """
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    result = np.tensordot(windows, kernel, axes=((1, 4, 5), (1, 2, 3)))
    return result.transpose(0, 3, 1, 2), windows


class Conv3x3:
    """3x3 convolution with stride 1, padding 1 and a bias."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        shape = (outputs, inputs, 3, 3)
        self.weight = Parameter(he_normal(rng, shape, fan_in=inputs * 9))
        self.bias = Parameter(np.zeros(outputs, np.float32))

    def forward(self, x: Array) -> Array:
        result, self._windows = convolve3x3(x, self.weight.value)
        return result + self.bias.value[:, None, None]

    def backward(self, gradient: Array) -> Array:
        self.bias.gradient = gradient.sum(axis=(0, 2, 3))
        self.weight.gradient = np.tensordot(
            gradient, self._windows, axes=((0, 2, 3), (0, 2, 3))
        )
        # Each input pixel collects from the outputs around it: the same padded
        # convolution, with the kernel turned by 180 degrees and its channels swapped.
        turned = self.weight.value[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
        return convolve3x3(gradient, turned)[0]

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]


class Relu:
    """max(x, 0)."""

    def forward(self, x: Array) -> Array:
        self._positive = x > 0
        return x * self._positive

    def backward(self, gradient: Array) -> Array:
        return gradient * self._positive

    def parameters(self) -> list[Parameter]:
        return []


class MaxPool2x2:
    """The largest of each 2x2 block; rows and columns must be even."""

    def forward(self, x: Array) -> Array:
        n, channels, rows, columns = x.shape
        blocks = x.reshape(n, channels, rows // 2, 2, columns // 2, 2)
        largest = blocks.max(axis=(3, 5), keepdims=True)
        winners = blocks == largest
        # Equal winners share the gradient, so that it is not counted twice.
        self._share = (winners / winners.sum(axis=(3, 5), keepdims=True)).astype(
            x.dtype
        )
        return largest[:, :, :, 0, :, 0]

    def backward(self, gradient: Array) -> Array:
        n, channels, rows, columns = gradient.shape
        blocks = self._share * gradient[:, :, :, None, :, None]
        return blocks.reshape(n, channels, rows * 2, columns * 2)

    def parameters(self) -> list[Parameter]:
        return []


class Flatten:
    """All but the batch dimension in one."""

    def forward(self, x: Array) -> Array:
        self._shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, gradient: Array) -> Array:
        return gradient.reshape(self._shape)

    def parameters(self) -> list[Parameter]:
        return []


class Dense:
    """x @ weight + bias."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        self.weight = Parameter(he_normal(rng, (inputs, outputs), fan_in=inputs))
        self.bias = Parameter(np.zeros(outputs, np.float32))

    def forward(self, x: Array) -> Array:
        self._x = x
        return x @ self.weight.value + self.bias.value

    def backward(self, gradient: Array) -> Array:
        self.bias.gradient = gradient.sum(axis=0)
        self.weight.gradient = self._x.T @ gradient
        return gradient @ self.weight.value.T

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]


@dataclass
class Network:
    """Layers applied in order."""

    layers: list[Layer]

    def forward(self, x: Array) -> Array:
        """Returns the last layer's output: one row of class scores for each image."""
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, gradient: Array) -> Array:
        """Hands the gradient of the output back through all layers."""
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        return gradient

    def parameters(self) -> list[Parameter]:
        """Returns the parameters of all layers, in order."""
        return [p for layer in self.layers for p in layer.parameters()]


def softmax(scores: Array) -> Array:
    """Turns each row of scores into probabilities."""
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def cross_entropy(scores: Array, labels: NDArray[np.integer]) -> tuple[float, Array]:
    """Returns the mean loss of a batch and its gradient with respect to the scores."""
    probabilities = softmax(scores)
    rows = np.arange(len(labels))
    loss = -float(np.log(probabilities[rows, labels] + 1e-12).mean())
    gradient = probabilities
    gradient[rows, labels] -= 1
    return loss, gradient / len(labels)


class Adam:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    def __init__(self, parameters: list[Parameter], weight_decay: float) -> None:
        self._parameters = parameters
        self._decay = weight_decay
        self._mean = [np.zeros_like(p.value) for p in parameters]
        self._square = [np.zeros_like(p.value) for p in parameters]
        self._steps = 0

    def step(self, rate: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """Moves every parameter against its gradient by about rate."""
        self._steps += 1
        unbias1 = 1 - beta1**self._steps
        unbias2 = 1 - beta2**self._steps
        for p, mean, square in zip(self._parameters, self._mean, self._square):
            mean += (1 - beta1) * (p.gradient - mean)
            square += (1 - beta2) * (p.gradient**2 - square)
            change = (mean / unbias1) / (np.sqrt(square / unbias2) + 1e-8)
            p.value -= rate * (change + self._decay * p.value)
