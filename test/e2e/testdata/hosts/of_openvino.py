"""Models of OpenVINO's format, one in ONNX, and one whose batch is fixed in the file."""

import shutil
import sys

import numpy as np
import openvino as ov
from common import model, parameter, refused, request, tensors
from openvino import opset13 as ops


def mlp(shape):
    """Return a network of two layers."""
    generator = np.random.default_rng(1)
    x = ops.parameter(shape, np.float32, name="x")
    hidden = ops.relu(ops.matmul(x, generator.random((4, 16), np.float32), False, False))
    y = ops.matmul(hidden, generator.random((16, 3), np.float32), False, False)
    x.output(0).set_names({"x"})
    y.output(0).set_names({"y"})
    return ov.Model([y], [x], "mlp")


def main():
    compiled = ov.Core().compile_model(mlp([-1, 4]), "CPU")
    ov.save_model(mlp([-1, 4]), model("mlp", None) + "/model.xml", compress_to_fp16=False)
    for rows in (1, 2, 3, 1, 4, 2, 1):
        given = np.random.default_rng(rows).random((rows, 4), np.float32)
        request("mlp", {"x": given}, {"y": compiled(given)[0]})
    config = 'backend: "openvino"\nmax_batch_size: 4\n' + tensors("input", ("x", "FP32", "[ 4 ]")) + tensors("output", ("y", "FP32", "[ 3 ]"))
    threads = parameter("INFERENCE_NUM_THREADS", "1") + parameter("PERFORMANCE_HINT", "latency") + parameter("SKIP_OV_DYNAMIC_BATCHSIZE", "YES")
    ov.save_model(mlp([1, 4]), model("fixed", config + threads) + "/model.xml", compress_to_fp16=False)
    given = np.random.default_rng(9).random((3, 4), np.float32)
    request("fixed", {"x": given}, {"y": compiled(given)[0]})

    digits = sys.argv[2]
    shutil.copy(digits, model("onnx", 'backend: "openvino"\n') + "/model.onnx")
    network = ov.Core().compile_model(digits, "CPU")
    name = network.inputs[0].get_any_name()
    shape = [2 if size.is_dynamic else size.get_length() for size in network.inputs[0].partial_shape]
    given = np.random.default_rng(3).random(shape, np.float32)
    request("onnx", {name: given}, {port.get_any_name(): array for port, array in network(given).items()})

    ov.save_model(mlp([-1, 4]), model("other", config.replace('"x"', '"z"')) + "/model.xml")
    refused("other", "unexpected inference input 'z', allowed inputs are: x")
    ov.save_model(mlp([2, 4]), model("batch", 'backend: "openvino"\nmax_batch_size: 4\n') + "/model.xml")
    refused("batch", "model does not support batching while non-zero max_batch_size is specified")


main()
