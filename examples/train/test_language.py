"""Checks the layers and the corpus behind `language`, and the committed model.

Run with: python -m unittest discover -s examples/train
"""

from __future__ import annotations

import re
import unittest
from pathlib import Path, PurePath

import numpy as np
import onnxruntime

from corpus import collect, is_usable, project_of
from language import (
    LABELS,
    Texts,
    build_network,
    measure,
    open_guess,
    pick_measured,
    to_onnx,
)
from network import cross_entropy, softmax
from test_examples import slope, to_float64

FOLDER = Path(__file__).resolve().parent.parent / "models" / "language"
TOLERANCE = 0.05  # for a machine with other files than those behind the README


def random_texts(rng: np.random.Generator, count: int, length: int) -> Texts:
    """Returns texts in which every byte value may come."""
    return rng.integers(0, 256, (count, length)).astype(np.uint8)


class NetworkTest(unittest.TestCase):
    def test_gradients_match_finite_differences(self) -> None:
        for length in (1, 2, 9, 30):
            rng = np.random.default_rng(7)
            network = to_float64(build_network(rng))
            texts, labels = random_texts(rng, 4, length), np.array([0, 3, 3, 9])
            _, gradient = cross_entropy(network.forward(texts), labels)
            network.backward(gradient)
            for parameter in network.parameters():
                spots = np.argwhere(parameter.gradient)
                for at in map(tuple, rng.choice(spots, min(10, len(spots)))):
                    found = slope(network, texts, labels, parameter.value, at)
                    self.assertAlmostEqual(found, parameter.gradient[at], places=6)

    def test_onnx_computes_what_the_network_does_at_every_length(self) -> None:
        rng = np.random.default_rng(7)
        network = build_network(rng)
        session = onnxruntime.InferenceSession(
            to_onnx(network).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        for count, length in ((1, 1), (3, 2), (2, 7), (32, 100), (1, 4096)):
            texts = random_texts(rng, count, length)
            (answer,) = session.run(None, {"text": texts})
            np.testing.assert_allclose(
                answer, softmax(network.forward(texts)), atol=1e-5
            )


class CorpusTest(unittest.TestCase):
    def test_projects_are_told_apart_by_name_and_not_by_version_or_carrier(
        self,
    ) -> None:
        for path, levels, project in (
            ("src/net/http/client.go", 3, "src/net/http"),
            ("src/net/http/internal/chunked.go", 3, "src/net/http"),
            ("github.com/a/b@v1.2.0/x/y.go", 3, "github.com/a/b"),
            ("github.com/a/b/v2@v2.0.1/y.go", 3, "github.com/a/b"),
            ("example.com/zap@v1.1.0/core/y.go", 3, "example.com/zap"),
            ("src/cmd/vendor/golang.org/x/sys/unix/a.go", 3, "golang.org/x/sys"),
            ("site-packages/pip/_vendor/urllib3/util/url.py", 1, "urllib3"),
            ("site-packages/urllib3/util/url.py", 1, "urllib3"),
            ("npm/node_modules/@npmcli/git/lib/a.js", 1, "@npmcli"),
            ("argparse.py", 1, "argparse"),
            ("stdio.h", 1, "stdio"),
        ):
            with self.subTest(path):
                self.assertEqual(project_of(PurePath(path), levels), project)

    def test_what_teaches_nothing_is_left_out(self) -> None:
        prose = b"A line that is long enough to be looked at.\n" * 3
        for case, language, text, usable in (
            ("text", "Markdown", prose, True),
            ("too short", "Markdown", prose[:40], False),
            ("binary", "Markdown", prose + b"\0", False),
            ("one endless line", "JavaScript", b"a=1;" * 500, False),
            ("C++ in a header", "C", prose + b"namespace std {\n", False),
        ):
            with self.subTest(case):
                self.assertEqual(is_usable(language, text), usable)


class LanguageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.training, cls.held_out = collect()

    def test_no_project_and_no_text_is_on_both_sides(self) -> None:
        for key in ("project", "text"):
            sides = [
                {getattr(file, key) for file in part}
                for part in (self.training, self.held_out)
            ]
            self.assertFalse(sides[0] & sides[1], key)

    def test_labels_are_the_languages_in_order(self) -> None:
        labels = (FOLDER / "language_labels.txt").read_text()
        self.assertEqual(labels.splitlines(), LABELS)

    def test_accuracy_is_what_the_readme_says(self) -> None:
        guess = open_guess(FOLDER / "1" / "model.onnx")
        files = pick_measured(self.held_out)
        row = re.search(r"\| all \|(.*)\|", (FOLDER / "README.md").read_text())
        stated = [float(figure) / 100 for figure in re.findall(r"([\d.]+)%", row[1])]
        self.assertEqual(len(stated), 4)
        lengths = ((64, False), (256, False), (1024, False), (1024, True))
        for (length, beginning), figure in zip(lengths, stated):
            with self.subTest(length=length, beginning=beginning):
                found = measure(guess, files, length, beginning).mean()
                self.assertGreaterEqual(found, figure - TOLERANCE)


if __name__ == "__main__":
    unittest.main()
