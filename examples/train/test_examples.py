"""Checks the training code and the committed models.

Run with: python -m unittest discover -s examples/train
"""

from __future__ import annotations

import unittest
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from digits import build_network, count_correct, split_digits, to_onnx
from network import Network, cross_entropy

EXAMPLES = Path(__file__).resolve().parent.parent


def open_model(name: str) -> onnxruntime.InferenceSession:
    """Opens a committed model on the CPU."""
    path = EXAMPLES / "models" / name / "1" / "model.onnx"
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def to_float64(network: Network) -> Network:
    """Makes room for finite differences, which float32 rounds away."""
    for parameter in network.parameters():
        parameter.value = parameter.value.astype(np.float64)
    return network


def slope(network, inputs, labels, values, at, step=1e-6) -> float:
    """Returns the loss's central difference when values[at] moves by step."""
    kept, losses = values[at], []
    for moved in (kept + step, kept - step):
        values[at] = moved
        losses.append(cross_entropy(network.forward(inputs), labels)[0])
    values[at] = kept
    return (losses[0] - losses[1]) / (2 * step)


class TrainingTest(unittest.TestCase):
    def test_gradients_match_finite_differences(self) -> None:
        rng = np.random.default_rng(7)
        network = to_float64(build_network(rng))
        images, labels = rng.random((4, 1, 8, 8)), np.array([0, 3, 3, 9])
        _, gradient = cross_entropy(network.forward(images), labels)
        input_gradient = network.backward(gradient)
        checked = [(p.value, p.gradient) for p in network.parameters()]
        for values, gradients in [*checked, (images, input_gradient)]:
            for _ in range(10):
                at = tuple(rng.integers(0, values.shape))
                found = slope(network, images, labels, values, at)
                self.assertAlmostEqual(found, gradients[at], places=6)

    def test_onnx_computes_what_the_network_does(self) -> None:
        rng = np.random.default_rng(7)
        network = build_network(rng)
        images = rng.random((3, 1, 8, 8), np.float32)
        session = onnxruntime.InferenceSession(
            to_onnx(network).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (logits,) = session.run(["logits"], {"image": images})
        np.testing.assert_allclose(logits, network.forward(images), atol=1e-5)

    def test_untrained_network_guesses(self) -> None:
        _, held_out = split_digits()
        network = build_network(np.random.default_rng(7))
        self.assertLess(count_correct(network, held_out), len(held_out.labels) // 2)


class DigitsTest(unittest.TestCase):
    def test_accuracy_is_what_the_readme_says(self) -> None:
        _, held_out = split_digits()
        session = open_model("digits")
        (probabilities,) = session.run(["probabilities"], {"image": held_out.images})
        correct = int((probabilities.argmax(axis=1) == held_out.labels).sum())
        readme = (EXAMPLES / "models" / "digits" / "README.md").read_text()
        self.assertIn(f"{correct} of the {len(held_out.labels)} held-out", readme)
        self.assertGreaterEqual(correct / len(held_out.labels), 0.98)

    def test_images_are_held_out_and_keep_every_pixel(self) -> None:
        _, held_out = split_digits()
        for digit in range(10):
            first = held_out.images[held_out.labels == digit][0, 0]
            with Image.open(EXAMPLES / "images" / f"{digit}_a.png") as picture:
                small = picture.resize((8, 8), Image.Resampling.BOX)
            np.testing.assert_allclose(np.asarray(small) / 255, first, atol=0.5 / 255)


class SimpleTest(unittest.TestCase):
    def test_simple_adds_and_subtracts(self) -> None:
        a = np.arange(32, dtype=np.int32).reshape(2, 16)
        b = np.full((2, 16), 5, np.int32)
        total, difference = open_model("simple").run(
            ["OUTPUT0", "OUTPUT1"], {"INPUT0": a, "INPUT1": b}
        )
        np.testing.assert_array_equal(total, a + b)
        np.testing.assert_array_equal(difference, a - b)

    def test_simple_string_adds_and_subtracts_decimal_numbers(self) -> None:
        a = np.arange(16).reshape(1, 16)
        b = np.full((1, 16), 5)
        total, difference = open_model("simple_string").run(
            ["OUTPUT0", "OUTPUT1"],
            {"INPUT0": a.astype(str).astype(object), "INPUT1": b.astype(str)},
        )
        np.testing.assert_array_equal(total, (a + b).astype(str))
        np.testing.assert_array_equal(difference, (a - b).astype(str))

    def test_simple_identity_returns_any_text(self) -> None:
        text = np.array([["", "nereid", "Größe 名前"]], dtype=object)
        (answer,) = open_model("simple_identity").run(["OUTPUT0"], {"INPUT0": text})
        np.testing.assert_array_equal(answer, text)

    def test_best_takes_the_largest_of_each_row(self) -> None:
        rows = np.random.default_rng(7).random((5, 10), np.float32)
        rows[4] = 0.1  # of equals the first
        digits, probabilities = open_model("best").run(
            ["DIGIT", "PROBABILITY"], {"probabilities": rows}
        )
        np.testing.assert_array_equal(digits[:, 0], rows.argmax(axis=1))
        np.testing.assert_array_equal(probabilities[:, 0], rows.max(axis=1))


if __name__ == "__main__":
    unittest.main()
