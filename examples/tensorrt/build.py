"""Builds a TensorRT plan from an ONNX model, and the description of it that nereid reads.

    python3 build.py model.onnx models/NAME/1/model.plan --fp16 --shape image=1x3x224x224,8x3x224x224,32x3x224x224

Run it with the release of TensorRT and on the kind of GPU that will serve the plan: it runs nowhere else. A shape has the
least, the best and the largest size of an input with open dimensions. Needs the package tensorrt.
"""

import argparse
import json
import pathlib
import subprocess

import tensorrt as trt

DATATYPES = {"FLOAT": "FP32", "HALF": "FP16", "BF16": "BF16", "INT8": "INT8", "INT32": "INT32", "INT64": "INT64", "BOOL": "BOOL", "UINT8": "UINT8"}


def shapes(text):
    """Reads NAME=MIN,OPT,MAX."""
    name, _, ranges = text.partition("=")
    least, best, largest = [[int(size) for size in one.split("x")] for one in ranges.split(",")]
    return name, {"min": least, "opt": best, "max": largest}


def build(onnx, ranges, flags, workspace):
    """Returns the plan's bytes and the network that it was built from."""
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(onnx)):
        raise SystemExit("\n".join(str(parser.get_error(i)) for i in range(parser.num_errors)))
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    for flag in flags:
        config.set_flag(flag)
    if ranges:
        profile = builder.create_optimization_profile()
        for name, sizes in ranges.items():
            profile.set_shape(name, sizes["min"], sizes["opt"], sizes["max"])
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise SystemExit("TensorRT could not build the plan: its messages above say why")
    return plan, network


def tensors(count, get):
    """Lists inputs or outputs as the description has them."""
    return [{"name": t.name, "datatype": DATATYPES[t.dtype.name], "shape": list(t.shape)} for t in map(get, range(count))]


def capability():
    """Asks the driver for the compute capability of the first GPU."""
    out = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], check=True, capture_output=True, text=True)
    return out.stdout.splitlines()[0].strip()


def main():
    """Builds and describes."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("onnx", type=pathlib.Path)
    options.add_argument("plan", type=pathlib.Path)
    options.add_argument("--shape", type=shapes, action="append", default=[], metavar="NAME=MIN,OPT,MAX")
    options.add_argument("--workspace", type=int, default=1 << 30, help="bytes that building and running may use; 1 GiB")
    for precision in ("fp16", "bf16", "int8"):
        options.add_argument("--" + precision, action="store_true")
    given = options.parse_args()
    chosen = [p for p in ("fp16", "bf16", "int8") if getattr(given, p)]
    ranges = dict(given.shape)
    plan, network = build(given.onnx, ranges, [getattr(trt.BuilderFlag, p.upper()) for p in chosen], given.workspace)
    given.plan.parent.mkdir(parents=True, exist_ok=True)
    given.plan.write_bytes(plan)
    description = {
        "tensorrt": trt.__version__,
        "compute_capability": capability(),
        "precision": "+".join(chosen) or "tf32",
        "profiles": [{"name": "0", "inputs": ranges}] if ranges else [],
        "inputs": tensors(network.num_inputs, network.get_input),
        "outputs": tensors(network.num_outputs, network.get_output),
    }
    pathlib.Path(str(given.plan) + ".json").write_text(json.dumps(description, indent=2) + "\n")


if __name__ == "__main__":
    main()
