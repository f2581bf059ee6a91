"""Writes the example model `best` as ONNX: the most probable of the classes of `digits`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the oldest that may carry opset 17, so older runtimes read it too
CLASSES = 10


def best() -> onnx.ModelProto:
    """Takes the largest value of each row of probabilities, and its column."""
    kind = TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("TopK", ["probabilities", "one"], ["PROBABILITY", "DIGIT"])],
        "best",
        [tensor("probabilities", kind, CLASSES)],
        [tensor("DIGIT", TensorProto.INT64, 1), tensor("PROBABILITY", kind, 1)],
        [numpy_helper.from_array(np.array([1], np.int64), "one")],
    )
    made = helper.make_model(
        graph,
        producer_name="examples/train/best.py",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(made, full_check=True)
    return made


def tensor(name: str, kind: int, length: int) -> onnx.ValueInfoProto:
    """Describes an input or output [batch, length]."""
    return helper.make_tensor_value_info(name, kind, ["batch", length])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="folder that gets models/best/1/model.onnx (default: the examples folder)",
    )
    args = parser.parse_args()
    path = args.out / "models" / "best" / "1" / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(best(), path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
