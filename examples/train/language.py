"""Trains the example model `language` and writes it as ONNX with its labels.

The data are the sources and documents that corpus.py finds on this machine. A snippet
is a stretch of bytes that begins with a line; its length is drawn anew for every batch,
so one network learns to read a few words as well as a page.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from corpus import LANGUAGES, File, collect, digest
from network import Adam, Array, Dense, Network, Relu, cross_entropy
from sequence import Conv1d, Embedding, GlobalPool

LABELS = list(LANGUAGES)
LEAST_FILES = 20  # of each language in the training part
SHORTEST, LONGEST = 16, 1024  # bytes of a training snippet
MEASURED_LENGTHS = (64, 256, 1024)
MEASURED_FILES = 150  # of each language
MEASURED_OF_PROJECT = 10
OPSET = 17
IR_VERSION = 8  # the oldest that may carry opset 17, so older runtimes read it too

Texts = NDArray[np.uint8]


def build_network(rng: np.random.Generator) -> Network:
    """Returns an untrained network of about 25,000 parameters."""
    return Network(
        [
            Embedding(rng, 16),
            Conv1d(rng, 16, 32, width=5),
            Relu(),
            Conv1d(rng, 32, 96, width=5, stride=2),
            Relu(),
            GlobalPool(),
            Dense(rng, 2 * 96, len(LABELS)),
        ]
    )


def cut(rng: np.random.Generator, text: bytes, length: int) -> bytes:
    """Returns so many bytes from the beginning of a random line, or a short text."""
    at = text.rfind(b"\n", 0, rng.integers(0, max(len(text) - length, 0) + 1)) + 1
    return text[at : at + length]


class Sampler:
    """Draws snippets: languages alike, projects by the root of their size."""

    def __init__(self, rng: np.random.Generator, files: list[File]) -> None:
        self._rng = rng
        groups: dict[str, dict[str, list[bytes]]] = {name: {} for name in LABELS}
        for file in files:
            groups[file.language].setdefault(file.project, []).append(file.text)
        self._texts, self._chances = [], []
        for name in LABELS:
            projects = groups[name].values()
            texts = [text for project in projects for text in project]
            if len(texts) < LEAST_FILES:
                sys.exit(
                    f"language: this machine has {len(texts)} files in {name} to train "
                    f"on, and {LEAST_FILES} are needed: install what ships some"
                )
            weights = [len(p) ** -0.5 for p in projects for _ in p]
            self._texts.append(texts)
            self._chances.append(np.cumsum(weights) / np.sum(weights))

    def draw(self, count: int, length: int) -> tuple[Texts, NDArray[np.integer]]:
        """Returns snippets of exactly this length and their languages."""
        labels = self._rng.integers(0, len(LABELS), count)
        snippets = [self._snippet(label, length) for label in labels]
        return np.frombuffer(b"".join(snippets), np.uint8).reshape(-1, length), labels

    def _snippet(self, label: int, length: int) -> bytes:
        while True:
            at = np.searchsorted(self._chances[label], self._rng.random())
            snippet = cut(self._rng, self._texts[label][at], length)
            if len(snippet) == length and not snippet.isspace():
                return snippet


def train(
    network: Network,
    sampler: Sampler,
    rng: np.random.Generator,
    steps: int,
    batch_size: int = 64,
    peak_rate: float = 3e-3,
) -> None:
    """Trains with Adam, a learning rate falling as a cosine, and lengths drawn anew."""
    optimiser = Adam(network.parameters(), weight_decay=0.01)
    losses = []
    for step in range(steps):
        rate = peak_rate * 0.5 * (1 + np.cos(np.pi * step / steps))
        length = round(np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST))))
        texts, labels = sampler.draw(batch_size, length)
        loss, gradient = cross_entropy(network.forward(texts), labels)
        network.backward(gradient)
        optimiser.step(np.float32(rate))
        losses.append(loss)
        if (step + 1) % 250 == 0:
            print(f"step {step + 1:5}/{steps}  loss {np.mean(losses):.4f}", flush=True)
            losses.clear()


def pick_measured(held_out: list[File]) -> list[File]:
    """Returns as many held-out files of each language, where there are so many."""
    of_project: dict[tuple[str, str], int] = defaultdict(int)
    of_language: dict[str, list[File]] = defaultdict(list)
    for file in sorted(held_out, key=lambda file: digest(file.text)):
        of_project[file.language, file.project] += 1
        picked = of_language[file.language]
        if of_project[file.language, file.project] <= MEASURED_OF_PROJECT:
            picked.append(file)
    return [file for picked in of_language.values() for file in picked[:MEASURED_FILES]]


def measure(
    guess: Callable[[Texts], Array], files: list[File], length: int, beginning: bool
) -> NDArray[np.bool_]:
    """Returns of which files a snippet gets the right language.

    It begins with the file or else with a line that depends on the file alone. A file
    that is shorter counts as a whole.
    """
    right = []
    for file in files:
        rng = np.random.default_rng(list(digest(file.text)))
        snippet = file.text[:length] if beginning else cut(rng, file.text, length)
        text = np.frombuffer(snippet, np.uint8)
        right.append(LABELS[guess(text[None]).argmax()] == file.language)
    return np.array(right)


def print_accuracy(guess: Callable[[Texts], Array], held_out: list[File]) -> None:
    """Prints Markdown tables: all files by length, then each language by length."""
    files = pick_measured(held_out)
    languages = np.array([file.language for file in files])
    columns = [measure(guess, files, n, False) for n in MEASURED_LENGTHS]
    columns.append(measure(guess, files, LONGEST, True))
    heads = [*(f"{n} bytes" for n in MEASURED_LENGTHS), f"first {LONGEST} bytes"]
    print("| language | files | projects | " + " | ".join(heads) + " |")
    print("|---|" + "---:|" * (len(heads) + 2))
    for name in [*LABELS, "all"]:
        of_it = (languages == name) | (name == "all")
        projects = {f.project for f in files if name in (f.language, "all")}
        cells = [f"{column[of_it].mean():.1%}" for column in columns]
        print(f"| {name} | {of_it.sum()} | {len(projects)} | {' | '.join(cells)} |")


def to_onnx(network: Network) -> onnx.ModelProto:
    """Describes the network as ONNX, batch size and length free, softmax on top."""
    nodes = [helper.make_node("Cast", ["text"], ["layer"], to=TensorProto.INT32)]
    weights, tensor = [], "layer"
    for i, layer in enumerate(network.layers):
        names = [f"layer{i}.{part}" for part in ("weight", "bias")]
        names = names[: len(layer.parameters())]
        for name, parameter in zip(names, layer.parameters()):
            weights.append(numpy_helper.from_array(parameter.value, name))
        nodes += to_nodes(layer, tensor, names, f"layer{i}")
        tensor = f"layer{i}"
    nodes.append(helper.make_node("Softmax", [tensor], ["probabilities"], axis=1))
    text = helper.make_tensor_value_info("text", TensorProto.UINT8, ["batch", "length"])
    probabilities = helper.make_tensor_value_info(
        "probabilities", TensorProto.FLOAT, ["batch", len(LABELS)]
    )
    model = helper.make_model(
        helper.make_graph(nodes, "language", [text], [probabilities], weights),
        producer_name="examples/train/language.py",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def to_nodes(
    layer: object, x: str, weights: list[str], y: str
) -> list[onnx.NodeProto]:
    """Returns ONNX operators for a layer; they keep channels before positions."""
    make = helper.make_node
    match layer:
        case Embedding():
            return [
                make("Gather", [weights[0], x], [f"{y}.rows"]),
                make("Transpose", [f"{y}.rows"], [y], perm=[0, 2, 1]),
            ]
        case Conv1d():
            pads = [layer.padding, layer.padding]
            return [make("Conv", [x, *weights], [y], pads=pads, strides=[layer.stride])]
        case Relu():
            return [make("Relu", [x], [y])]
        case GlobalPool():
            return [
                make("ReduceMax", [x], [f"{y}.max"], axes=[2], keepdims=0),
                make("ReduceMean", [x], [f"{y}.mean"], axes=[2], keepdims=0),
                make("Concat", [f"{y}.max", f"{y}.mean"], [y], axis=1),
            ]
        case Dense():
            return [make("Gemm", [x, *weights], [y])]
    raise TypeError(f"no ONNX operator for layer {type(layer).__name__}")


def open_guess(path: Path) -> Callable[[Texts], Array]:
    """Returns what the ONNX model at path says of texts."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda texts: session.run(["probabilities"], {"text": texts})[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="folder that gets models/language (default: the examples folder)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--measure", action="store_true", help="only measure the model")
    args = parser.parse_args()
    folder = args.out / "models" / "language"
    path = folder / "1" / "model.onnx"

    training, held_out = collect()
    print(f"{len(training)} files to train on, {len(held_out)} held out", flush=True)
    if not args.measure:
        rng = np.random.default_rng(args.seed)
        network = build_network(rng)
        train(network, Sampler(rng, training), rng, args.steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(to_onnx(network), path)
        (folder / "language_labels.txt").write_text("".join(f"{n}\n" for n in LABELS))
        print(f"wrote {path} ({path.stat().st_size} bytes)")
    print_accuracy(open_guess(path), held_out)


if __name__ == "__main__":
    main()
