"""Says in which language files are written, with the model `language`.

    python examples/clients/language.py README.md Makefile examples/clients/*.py

prints a line for each file: the file, the language, and the model's confidence.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from types import ModuleType

import numpy as np
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

Text = NDArray[np.uint8]
Array = NDArray[np.float32]

LABELS = Path(__file__).resolve().parents[1] / "models/language/language_labels.txt"
MAX_BATCH_SIZE = 32  # of the model's config.pbtxt
MOST_BYTES = 1 << 16  # of a snippet; running the model takes 0.5 KB of memory for each
MAX_IN_FLIGHT = 64  # concurrent requests of --protocol aio
DEFAULT_URLS = {
    "http": "localhost:8000",
    "grpc": "localhost:8001",
    "aio": "localhost:8001",
}
# What tritonclient raises.
FAILURES = (OSError, HTTPException, InferenceServerException)


class LanguageError(Exception):
    """Says what went wrong and what to do about it."""


def read_snippet(path: Path, length: int) -> Text:
    """Returns the first bytes of a file."""
    try:
        with path.open("rb") as file:
            snippet = file.read(length)
    except OSError as error:
        raise LanguageError(f"{path}: cannot be read: {error.strerror}") from None
    if not snippet:
        raise LanguageError(f"{path}: is empty, so it is in no language")
    return np.frombuffer(snippet, np.uint8)


def make_batches(snippets: list[Text]) -> Iterator[list[int]]:
    """Yields the positions of snippets that may share a request: of equal length."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for position, snippet in enumerate(snippets):
        by_length[len(snippet)].append(position)
    for positions in by_length.values():
        for start in range(0, len(positions), MAX_BATCH_SIZE):
            yield positions[start : start + MAX_BATCH_SIZE]


def make_tensors(library: ModuleType, texts: Text) -> dict[str, list]:
    """Describes one request in the classes of the given tritonclient module."""
    text = library.InferInput("text", list(texts.shape), "UINT8")
    text.set_data_from_numpy(texts)
    wanted = library.InferRequestedOutput("probabilities")
    return {"inputs": [text], "outputs": [wanted]}


@contextmanager
def failing_as(explanation: LanguageError) -> Iterator[None]:
    """Turns whatever tritonclient raises inside into the explanation."""
    try:
        yield
    except FAILURES:
        raise explanation from None


def unreachable(url: str) -> LanguageError:
    """Explains a server that does not answer."""
    return LanguageError(
        f"no inference server answers at {url}. Start one with `make serve`, or name "
        "another with --url HOST:PORT (and its --protocol)."
    )


def not_ready(model: str, url: str) -> LanguageError:
    """Explains a model that the server has not loaded."""
    return LanguageError(
        f"the server at {url} runs, but model {model!r} is not ready there. Is it in "
        "the server's model repository? Its log says why a model failed to load."
    )


def classify_in_batches(
    library: ModuleType, url: str, model: str, snippets: list[Text]
) -> Array:
    """Sends snippets of equal length together, one batch after the other."""
    with library.InferenceServerClient(url) as client:
        with failing_as(unreachable(url)):
            live = client.is_server_live()
        if not live:
            raise unreachable(url)
        with failing_as(not_ready(model, url)):
            ready = client.is_model_ready(model)
        if not ready:
            raise not_ready(model, url)
        rows: dict[int, Array] = {}
        for positions in make_batches(snippets):
            texts = np.stack([snippets[position] for position in positions])
            answer = client.infer(model, **make_tensors(library, texts))
            rows.update(zip(positions, answer.as_numpy("probabilities")))
    return np.stack([rows[position] for position in range(len(snippets))])


async def classify_concurrently(
    library: ModuleType, url: str, model: str, snippets: list[Text]
) -> Array:
    """Sends each snippet as a request of its own; the server makes the batches."""
    slots = asyncio.Semaphore(MAX_IN_FLIGHT)
    async with library.InferenceServerClient(url) as client:
        with failing_as(unreachable(url)):
            live = await client.is_server_live()
        if not live:
            raise unreachable(url)
        with failing_as(not_ready(model, url)):
            ready = await client.is_model_ready(model)
        if not ready:
            raise not_ready(model, url)

        async def classify_one(snippet: Text) -> Array:
            async with slots:
                tensors = make_tensors(library, snippet[None])
                answer = await client.infer(model, **tensors)
            return answer.as_numpy("probabilities")

        return np.concatenate(
            await asyncio.gather(*(classify_one(snippet) for snippet in snippets))
        )


def classify(protocol: str, url: str, model: str, snippets: list[Text]) -> Array:
    """Returns a row of probabilities for each snippet."""
    match protocol:
        case "http":
            return classify_in_batches(tritonclient.http, url, model, snippets)
        case "grpc":
            return classify_in_batches(tritonclient.grpc, url, model, snippets)
        case "aio":
            library = tritonclient.grpc.aio
            return asyncio.run(classify_concurrently(library, url, model, snippets))
    raise ValueError(f"unknown protocol {protocol!r}")


def read_labels(path: Path, classes: int) -> list[str]:
    """Returns the languages' names in the order of the model's classes."""
    try:
        labels = path.read_text().split("\n")[:classes]
    except OSError as error:
        raise LanguageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(labels) < classes or not all(labels):
        raise LanguageError(
            f"{path} names fewer than the model's {classes} classes: see --labels"
        )
    return labels


def print_table(paths: list[Path], labels: list[str], probabilities: Array) -> None:
    """Prints a line for each file."""
    width = max(len("file"), *(len(str(path)) for path in paths))
    column = max(len("language"), *(len(label) for label in labels))
    print(f"{'file':{width}}  {'language':{column}}  confidence")
    for path, row in zip(paths, probabilities):
        label = labels[row.argmax()]
        print(f"{str(path):{width}}  {label:{column}}  {row.max():10.1%}")


def host_and_port(text: str) -> str:
    """Checks the form of --url: tritonclient takes no scheme."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"give HOST:PORT, without {text.split('://')[0]}://"
        )
    return text


def byte_count(text: str) -> int:
    """Checks the value of --bytes."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_BYTES:
        raise argparse.ArgumentTypeError(f"give a number from 1 to {MOST_BYTES}")
    return int(text)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Says in which language files are written, with a model on an "
        "inference server."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--protocol",
        choices=DEFAULT_URLS,
        default="http",
        help="http and grpc send batches, aio (gRPC with asyncio) sends every file "
        "as a concurrent request (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        type=host_and_port,
        metavar="HOST:PORT",
        help="the server (default: localhost:8000 for http, localhost:8001 otherwise)",
    )
    parser.add_argument("--model", default="language", help="(default: %(default)s)")
    parser.add_argument(
        "--bytes",
        type=byte_count,
        default=1024,
        metavar="N",
        help="how much of each file's beginning to send (default: %(default)s)",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        default=LABELS,
        metavar="FILE",
        help="the names of the model's classes, a line each (default: the example's)",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    try:
        snippets = [read_snippet(path, args.bytes) for path in args.files]
        url = args.url or DEFAULT_URLS[args.protocol]
        probabilities = classify(args.protocol, url, args.model, snippets)
        labels = read_labels(args.labels, probabilities.shape[1])
    except LanguageError as error:
        sys.exit(f"language: {error}")
    except FAILURES as error:
        sys.exit(f"language: the request failed: {error}")
    print_table(args.files, labels, probabilities)


if __name__ == "__main__":
    main()
