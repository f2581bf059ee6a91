"""Writes the example models `simple`, `simple_string` and `simple_identity` as ONNX.

They have the names and tensors of the models that Triton's own client examples call.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx
from onnx import TensorProto, helper

OPSET = 17
IR_VERSION = 8  # the oldest that may carry opset 17, so older runtimes read it too


def simple() -> onnx.ModelProto:
    """Adds and subtracts two INT32 tensors of 16 elements."""
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    kind = TensorProto.INT32
    inputs = [tensor("INPUT0", kind, 16), tensor("INPUT1", kind, 16)]
    outputs = [tensor("OUTPUT0", kind, 16), tensor("OUTPUT1", kind, 16)]
    return model("simple", nodes, inputs, outputs)


def simple_string() -> onnx.ModelProto:
    """Adds and subtracts two tensors of 16 decimal numbers, each a string."""
    nodes = [
        helper.make_node("Cast", ["INPUT0"], ["number0"], to=TensorProto.INT32),
        helper.make_node("Cast", ["INPUT1"], ["number1"], to=TensorProto.INT32),
        helper.make_node("Add", ["number0", "number1"], ["sum"]),
        helper.make_node("Sub", ["number0", "number1"], ["difference"]),
        helper.make_node("Cast", ["sum"], ["OUTPUT0"], to=TensorProto.STRING),
        helper.make_node("Cast", ["difference"], ["OUTPUT1"], to=TensorProto.STRING),
    ]
    kind = TensorProto.STRING
    inputs = [tensor("INPUT0", kind, 16), tensor("INPUT1", kind, 16)]
    outputs = [tensor("OUTPUT0", kind, 16), tensor("OUTPUT1", kind, 16)]
    return model("simple_string", nodes, inputs, outputs)


def simple_identity() -> onnx.ModelProto:
    """Returns a tensor of strings of any length as it came."""
    nodes = [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])]
    inputs = [tensor("INPUT0", TensorProto.STRING, "length")]
    outputs = [tensor("OUTPUT0", TensorProto.STRING, "length")]
    return model("simple_identity", nodes, inputs, outputs)


def tensor(name: str, kind: int, length: int | str) -> onnx.ValueInfoProto:
    """Describes an input or output [batch, length]; a text length is left free."""
    return helper.make_tensor_value_info(name, kind, ["batch", length])


def model(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """Puts a graph into a checked model."""
    made = helper.make_model(
        helper.make_graph(nodes, name, inputs, outputs),
        producer_name="examples/train/simple.py",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid("", OPSET)],
    )
    onnx.checker.check_model(made, full_check=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="folder that gets models/NAME/1/model.onnx (default: the examples folder)",
    )
    args = parser.parse_args()
    for made in (simple(), simple_string(), simple_identity()):
        path = args.out / "models" / made.graph.name / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(made, path)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
