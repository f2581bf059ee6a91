"""The real Triton client's answers against those of ONNX Runtime itself, for the same models and inputs.

REPOSITORY is the served repository, CASES a JSON file of

    {"model", "inputs": [{"name", "datatype", "shape", "model_shape", "data"}], "shapes": {output: shape}}

in which model_shape and data may be null and shapes may be missing: the shape that the model itself sees where it is another, the
numbers where they matter, and the shapes that the client sees where they are not the model's. HTTP_URL and GRPC_URL
say where the server is.
"""

import ctypes
import json
import os
import pathlib
import sys
import unittest

import ml_dtypes
import numpy as np
import onnxruntime
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import triton_to_np_dtype

REPOSITORY = pathlib.Path(os.environ["REPOSITORY"])
CASES = json.loads(pathlib.Path(os.environ["CASES"]).read_text())
BF16 = 16  # ONNX's number for the datatype that numpy does not have
NO_JSON = {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}  # datatypes that the protocol carries in binary only


def elements(datatype, count, seed):
    """Makes any elements of a datatype, its extremes among them; the same for the same seed."""
    rng = np.random.default_rng(seed)
    if datatype == "BYTES":
        words = ["", "plain", "gr\u00fc\u00df", "\u2603" * 50, "a\x00b", "x" * 300]
        return np.array([words[i].encode() for i in rng.integers(len(words), size=count)], dtype=object)
    dtype = np.dtype(triton_to_np_dtype(datatype))
    if datatype == "BOOL":
        return rng.integers(2, size=count).astype(dtype)
    bits = rng.integers(256, size=count * dtype.itemsize, dtype=np.uint8).view(dtype)
    if datatype in ("FP16", "FP32", "FP64", "BF16"):
        finite = np.isfinite(bits.astype(np.float64))
        return np.where(finite, bits, np.asarray(1.5, dtype))
    extremes = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
    return np.concatenate([extremes, bits])[:count]


def arrays(case):
    """Makes a case's inputs in the shapes of the client."""
    made = {}
    for seed, tensor in enumerate(case["inputs"]):
        count = int(np.prod(tensor["shape"]))
        if tensor["data"] is not None:
            flat = np.array(tensor["data"], triton_to_np_dtype(tensor["datatype"]))
        else:
            flat = elements(tensor["datatype"], count, seed)
        made[tensor["name"]] = flat.reshape(tensor["shape"])
    return made


def bfloat16(value):
    """Copies a BF16 value of the runtime into an array."""
    count = int(np.prod(value.shape()))
    raw = (ctypes.c_uint16 * count).from_address(value.data_ptr()) if count else []
    return np.array(raw, np.uint16).view(ml_dtypes.bfloat16).reshape(value.shape())


def runtime_value(array):
    """Makes a value of the runtime."""
    if array.dtype == ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(array).view(np.uint16), BF16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def reference(case, inputs):
    """Runs a case's model in this process."""
    session = onnxruntime.InferenceSession(REPOSITORY / case["model"] / "1" / "model.onnx")
    feeds = {}
    for tensor in case["inputs"]:
        shape = tensor["shape"] if tensor["model_shape"] is None else tensor["model_shape"]
        array = feeds[tensor["name"]] = inputs[tensor["name"]].reshape(shape)
        if array.dtype == object:
            texts = np.array([text.decode() for text in array.flatten()], object)
            feeds[tensor["name"]] = texts.reshape(array.shape)
    names = [output.name for output in session.get_outputs()]
    if all(tensor.type != "tensor(bfloat16)" for tensor in session.get_inputs() + session.get_outputs()):
        return dict(zip(names, session.run(names, feeds)))
    values = session.run_with_ort_values(names, {name: runtime_value(array) for name, array in feeds.items()})
    return {name: bfloat16(v) if v.element_type() == BF16 else v.numpy() for name, v in zip(names, values)}


def same(got, want):
    """Whether two arrays hold the same bits."""
    if want.dtype == object:
        return [t if isinstance(t, str) else t.decode() for t in got.flatten()] == list(want.flatten())
    return got.dtype == want.dtype and got.tobytes() == want.tobytes()


class Comparison(unittest.TestCase):
    """Every case over every way in."""

    @classmethod
    def setUpClass(cls):
        cls.http = http_client.InferenceServerClient(os.environ["HTTP_URL"], network_timeout=300, connection_timeout=300)
        cls.grpc = grpc_client.InferenceServerClient(os.environ["GRPC_URL"])

    @classmethod
    def tearDownClass(cls):
        cls.http.close()
        cls.grpc.close()

    def ask(self, case, way, inputs, names):
        module, client = (grpc_client, self.grpc) if way == "grpc" else (http_client, self.http)
        binary = {} if way == "grpc" else {"binary_data": way == "binary"}
        tensors = []
        for tensor in case["inputs"]:
            made = module.InferInput(tensor["name"], tensor["shape"], tensor["datatype"])
            made.set_data_from_numpy(inputs[tensor["name"]], **binary)
            tensors.append(made)
        outputs = [module.InferRequestedOutput(name, **binary) for name in names]
        return client.infer(case["model"], tensors, outputs=outputs)

    def compare(self, case, way, inputs, wanted):
        result = self.ask(case, way, inputs, list(wanted))
        for name, want in wanted.items():
            got = result.as_numpy(name)
            shape = case.get("shapes", {}).get(name, list(want.shape))
            self.assertEqual(list(got.shape), shape, f"shape of {name}")
            self.assertTrue(same(got, want), f"{name}: got {got.flatten()[:8]}, ONNX Runtime gives {want.flatten()[:8]}")

    def test_answers(self):
        for case in CASES:
            inputs = arrays(case)
            wanted = reference(case, inputs)
            datatypes = [array.dtype for array in (*inputs.values(), *wanted.values())]
            for way in ("binary", "json", "grpc"):
                if way == "json" and not NO_JSON.isdisjoint(datatypes):
                    continue
                with self.subTest(model=case["model"], shapes=[t["shape"] for t in case["inputs"]], way=way):
                    self.compare(case, way, inputs, wanted)
        print(f"{len(CASES)} cases compared with ONNX Runtime {onnxruntime.__version__}", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
