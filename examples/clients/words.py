"""Prints the words that the model `words` streams, each when it comes.

    python examples/clients/words.py --pause 200 "What comes one by one is printed one by one"
"""

from __future__ import annotations

import argparse
import queue
import sys

import numpy as np
import tritonclient.grpc
from tritonclient.utils import InferenceServerException


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Prints the words that a model streams, each when it comes."
    )
    parser.add_argument("text")
    parser.add_argument(
        "--pause",
        type=int,
        default=100,
        metavar="MS",
        help="how long the model waits after each word (default: %(default)s)",
    )
    parser.add_argument(
        "--url",
        default="localhost:8001",
        metavar="HOST:PORT",
        help="the server's gRPC port (default: %(default)s)",
    )
    return parser.parse_args()


def print_words(url: str, text: str, pause: int) -> None:
    """Prints words until the response that is marked as the last one."""
    tensor = tritonclient.grpc.InferInput("TEXT", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], np.object_))
    came: queue.Queue = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: came.put((result, error)))
        client.async_stream_infer(
            "words",
            [tensor],
            parameters={"pause_ms": pause},
            enable_empty_final_response=True,
        )
        between = ""
        while True:
            result, error = came.get()
            if error is not None:
                raise error
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                break
            print(between + result.as_numpy("WORD")[0].decode(), end="", flush=True)
            between = " "
    print()


def main() -> None:
    args = parse_arguments()
    try:
        print_words(args.url, args.text, args.pause)
    except InferenceServerException as error:
        sys.exit(f"words: {error.message()}")


if __name__ == "__main__":
    main()
