"""Reads handwritten digits from image files with the model `digits`.

    python examples/clients/classify.py examples/images/*.png

prints a line for each file: the file, the digit, and the model's confidence.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
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
from PIL import Image, ImageOps, UnidentifiedImageError
from tritonclient.utils import InferenceServerException

Images = NDArray[np.float32]
Classes = NDArray[np.object_]  # of bytes: score:class:label

MAX_BATCH_SIZE = 32  # of the model's config.pbtxt
MAX_IN_FLIGHT = 64  # concurrent requests of --protocol aio
DEFAULT_URLS = {
    "http": "localhost:8000",
    "grpc": "localhost:8001",
    "aio": "localhost:8001",
}


class ClassifyError(Exception):
    """Says what went wrong and what to do about it."""


def read_image(path: Path, invert: bool) -> Images:
    """Returns the picture as [1, 8, 8] with pixels from 0 (paper) to 1 (ink)."""
    try:
        with Image.open(path) as picture:
            grey = picture.convert("L").resize((8, 8), Image.Resampling.BOX)
    except FileNotFoundError:
        raise ClassifyError(f"{path}: no such file") from None
    except UnidentifiedImageError:
        raise ClassifyError(f"{path}: not an image that Pillow can read") from None
    except OSError as error:
        raise ClassifyError(f"{path}: cannot be read: {error}") from None
    if invert:
        grey = ImageOps.invert(grey)
    return (np.asarray(grey, np.float32) / np.float32(255))[None]


def make_tensors(library: ModuleType, images: Images) -> dict[str, list]:
    """Describes one request in the types of the given tritonclient module.

    Of each image the server gives the best class, and not all probabilities.
    """
    image = library.InferInput("image", list(images.shape), "FP32")
    image.set_data_from_numpy(images)
    return {
        "inputs": [image],
        "outputs": [library.InferRequestedOutput("probabilities", class_count=1)],
    }


FAILURES = (
    OSError,
    HTTPException,
    InferenceServerException,
)  # what tritonclient raises


@contextmanager
def failing_as(explanation: ClassifyError) -> Iterator[None]:
    """Turns whatever tritonclient raises inside into the explanation."""
    try:
        yield
    except FAILURES:
        raise explanation from None


def unreachable(url: str) -> ClassifyError:
    """Explains a server that does not answer."""
    return ClassifyError(
        f"no inference server answers at {url}. Start one with `make serve`, or name "
        "another with --url HOST:PORT (and its --protocol)."
    )


def not_ready(model: str, url: str) -> ClassifyError:
    """Explains a model that the server has not loaded."""
    return ClassifyError(
        f"the server at {url} runs, but model {model!r} is not ready there. Is it in "
        "the server's model repository? Its log says why a model failed to load."
    )


def classify_in_batches(
    library: ModuleType, url: str, model: str, images: Images
) -> Classes:
    """Sends full batches, one after the other."""
    with library.InferenceServerClient(url) as client:
        with failing_as(unreachable(url)):
            live = client.is_server_live()
        if not live:
            raise unreachable(url)
        with failing_as(not_ready(model, url)):
            ready = client.is_model_ready(model)
        if not ready:
            raise not_ready(model, url)
        answers = []
        for start in range(0, len(images), MAX_BATCH_SIZE):
            tensors = make_tensors(library, images[start : start + MAX_BATCH_SIZE])
            answers.append(client.infer(model, **tensors).as_numpy("probabilities"))
    return np.concatenate(answers)


async def classify_concurrently(
    library: ModuleType, url: str, model: str, images: Images
) -> Classes:
    """Sends each image as a request of its own and leaves the batching to the server."""
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

        async def classify_one(image: Images) -> Classes:
            async with slots:
                answer = await client.infer(model, **make_tensors(library, image))
            return answer.as_numpy("probabilities")

        return np.concatenate(
            await asyncio.gather(*(classify_one(image[None]) for image in images))
        )


def classify(protocol: str, url: str, model: str, images: Images) -> Classes:
    """Returns the best classes [n, 1] of images [n, 1, 8, 8]."""
    match protocol:
        case "http":
            return classify_in_batches(tritonclient.http, url, model, images)
        case "grpc":
            return classify_in_batches(tritonclient.grpc, url, model, images)
        case "aio":
            library = tritonclient.grpc.aio
            return asyncio.run(classify_concurrently(library, url, model, images))
    raise ValueError(f"unknown protocol {protocol!r}")


def print_table(paths: list[Path], classes: Classes) -> None:
    """Prints a line for each file."""
    width = max(len("file"), *(len(str(path)) for path in paths))
    print(f"{'file':{width}}  digit  confidence")
    for path, (best,) in zip(paths, classes):
        score, number, *label = best.decode().split(":", 2)
        print(f"{str(path):{width}}  {(label or [number])[0]:>5}  {float(score):10.1%}")


def host_and_port(text: str) -> str:
    """Checks the form of --url: tritonclient takes no scheme."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"give HOST:PORT, without {text.split('://')[0]}://"
        )
    return text


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Reads handwritten digits with a model on an inference server."
    )
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    parser.add_argument(
        "--protocol",
        choices=DEFAULT_URLS,
        default="http",
        help="http and grpc send batches, aio (gRPC with asyncio) sends every image "
        "as a concurrent request (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        type=host_and_port,
        metavar="HOST:PORT",
        help="the server (default: localhost:8000 for http, localhost:8001 otherwise)",
    )
    parser.add_argument("--model", default="digits", help="(default: %(default)s)")
    parser.add_argument(
        "--invert", action="store_true", help="for dark ink on light paper"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    try:
        images = np.stack([read_image(path, args.invert) for path in args.images])
        url = args.url or DEFAULT_URLS[args.protocol]
        classes = classify(args.protocol, url, args.model, images)
    except ClassifyError as error:
        sys.exit(f"classify: {error}")
    except FAILURES as error:
        sys.exit(f"classify: the request failed: {error}")
    print_table(args.images, classes)


if __name__ == "__main__":
    main()
