"""Trains the example model `digits` and writes it as ONNX, with images to try it on.

The data are the 1797 handwritten digits of 8x8 pixels that ship inside scikit-learn.
They lie in the order of their writers, so the split is by position: the first 1437
train, the last 360 are held out and come mostly from other hands.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits

from network import (
    Adam,
    Array,
    Conv3x3,
    Dense,
    Flatten,
    MaxPool2x2,
    Network,
    Relu,
    cross_entropy,
)

TRAINING_IMAGES = 1437
BRIGHTEST = 16  # scikit-learn counts the inked pixels of a 4x4 block: 0 to 16
OPSET = 17
IR_VERSION = 8  # the oldest that may carry opset 17, so older runtimes read it too


@dataclass(frozen=True)
class Examples:
    """Images [n, 1, 8, 8] with pixels from 0 (paper) to 1 (ink), and their digits."""

    images: Array
    labels: NDArray[np.integer]


def split_digits() -> tuple[Examples, Examples]:
    """Returns the training part and the held-out part."""
    data = load_digits()
    images = (data.images / BRIGHTEST).astype(np.float32)[:, None]
    labels = data.target
    return (
        Examples(images[:TRAINING_IMAGES], labels[:TRAINING_IMAGES]),
        Examples(images[TRAINING_IMAGES:], labels[TRAINING_IMAGES:]),
    )


def build_network(rng: np.random.Generator) -> Network:
    """Returns an untrained network of about 10,000 parameters."""
    return Network(
        [
            Conv3x3(rng, 1, 16),
            Relu(),
            Conv3x3(rng, 16, 32),
            Relu(),
            MaxPool2x2(),
            Flatten(),
            Dense(rng, 32 * 4 * 4, 10),
        ]
    )


def shift(rng: np.random.Generator, images: Array) -> Array:
    """Moves each image by up to one pixel in both directions, filling with paper."""
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    rows, columns = rng.integers(0, 3, (2, len(images)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(2, 3))
    return windows[np.arange(len(images)), :, rows, columns]


def train(
    network: Network,
    rng: np.random.Generator,
    examples: Examples,
    epochs: int,
    batch_size: int = 64,
    peak_rate: float = 3e-3,
) -> None:
    """Trains with Adam, a learning rate falling as a cosine, and shifted images."""
    optimiser = Adam(network.parameters(), weight_decay=0.01)
    for epoch in range(epochs):
        rate = peak_rate * 0.5 * (1 + np.cos(np.pi * epoch / epochs))
        order = rng.permutation(len(examples.labels))
        losses = []
        for start in range(0, len(order), batch_size):
            picked = order[start : start + batch_size]
            scores = network.forward(shift(rng, examples.images[picked]))
            loss, gradient = cross_entropy(scores, examples.labels[picked])
            network.backward(gradient)
            optimiser.step(rate)
            losses.append(loss)
        print(f"epoch {epoch + 1:2}/{epochs}  loss {np.mean(losses):.4f}")


def count_correct(network: Network, examples: Examples) -> int:
    """Returns how many images get the right digit."""
    guesses = network.forward(examples.images).argmax(axis=1)
    return int((guesses == examples.labels).sum())


def to_onnx(network: Network) -> onnx.ModelProto:
    """Describes the network as ONNX, with softmax on top and a free batch dimension."""
    nodes, weights, tensor = [], [], "image"
    for i, layer in enumerate(network.layers):
        names = [f"layer{i}.{part}" for part in ("weight", "bias")]
        inputs = [tensor, *names[: len(layer.parameters())]]
        for name, parameter in zip(names, layer.parameters()):
            weights.append(numpy_helper.from_array(parameter.value, name))
        last = i == len(network.layers) - 1
        tensor = "logits" if last else f"layer{i}"
        nodes.append(to_node(layer, inputs, tensor))
    nodes.append(helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1))
    graph = helper.make_graph(
        nodes,
        "digits",
        [float_tensor("image", 1, 8, 8)],
        [float_tensor("probabilities", 10), float_tensor("logits", 10)],
        weights,
    )
    model = helper.make_model(
        graph,
        producer_name="examples/train/digits.py",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def to_node(layer: object, inputs: list[str], output: str) -> onnx.NodeProto:
    """Returns the ONNX operator that computes what the layer does."""
    attributes: dict[str, Any]
    match layer:
        case Conv3x3():
            kind, attributes = "Conv", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        case Relu():
            kind, attributes = "Relu", {}
        case MaxPool2x2():
            kind, attributes = "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}
        case Flatten():
            kind, attributes = "Flatten", {}
        case Dense():
            kind, attributes = "Gemm", {}
        case _:
            raise TypeError(f"no ONNX operator for layer {type(layer).__name__}")
    return helper.make_node(kind, inputs, [output], **attributes)


def float_tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
    """Describes an input or output: float32, any batch size, then shape."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])


def write_images(examples: Examples, folder: Path) -> None:
    """Writes the first image of each digit as PNG, each pixel as 8x8 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    for digit in range(10):
        first = examples.images[examples.labels == digit][0, 0]
        pixels = np.round(first * 255).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((64, 64), Image.Resampling.NEAREST)
        picture.save(folder / f"{digit}_a.png", optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="folder that gets models/digits/1/model.onnx and images/*.png "
        "(default: the examples folder)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()

    training, held_out = split_digits()
    rng = np.random.default_rng(args.seed)
    network = build_network(rng)
    train(network, rng, training, args.epochs)
    for name, part in (("training", training), ("held-out", held_out)):
        correct, total = count_correct(network, part), len(part.labels)
        print(f"{name}: {correct} of {total} correct ({correct / total:.2%})")

    path = args.out / "models" / "digits" / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(to_onnx(network), path)
    write_images(held_out, args.out / "images")
    print(f"wrote {path} ({path.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
