"""What models import: every member by its name and signature, and what it does without a server."""

import ast
import inspect
import json
import os
import sys
import unittest

import numpy as np

import c_python_backend_utils
import triton_python_backend_utils as pb_utils

from .fake_worker import PACKAGE

# The members of Triton's module, with the names of their parameters; = marks those with a default.
MEMBERS = {
    "InferenceRequest": "request_id= correlation_id= inputs= requested_output_names= model_name= model_version= flags= timeout= "
    "preferred_memory= trace= parameters=",
    "InferenceRequest.async_exec": "self decoupled=",
    "InferenceRequest.correlation_id": "self",
    "InferenceRequest.exec": "self decoupled=",
    "InferenceRequest.flags": "self",
    "InferenceRequest.get_response_sender": "self",
    "InferenceRequest.inputs": "self",
    "InferenceRequest.is_cancelled": "self",
    "InferenceRequest.parameters": "self",
    "InferenceRequest.request_id": "self",
    "InferenceRequest.requested_output_names": "self",
    "InferenceRequest.set_flags": "self flags",
    "InferenceRequest.set_release_flags": "self flags",
    "InferenceRequest.timeout": "self",
    "InferenceRequest.trace": "self",
    "InferenceResponse": "output_tensors= error= parameters=",
    "InferenceResponse.error": "self",
    "InferenceResponse.has_error": "self",
    "InferenceResponse.output_tensors": "self",
    "InferenceResponse.parameters": "self",
    "Logger.log": "message level=",
    "Logger.log_error": "message",
    "Logger.log_info": "message",
    "Logger.log_verbose": "message",
    "Logger.log_warn": "message",
    "MetricFamily": "name description kind",
    "MetricFamily.Metric": "self labels= buckets=",
    "ModelConfig": "model_config",
    "ModelConfig.add_input": "self input",
    "ModelConfig.add_output": "self output",
    "ModelConfig.as_dict": "self",
    "ModelConfig.set_dynamic_batching": "self",
    "ModelConfig.set_max_batch_size": "self max_batch_size",
    "ModelConfig.set_model_transaction_policy": "self transaction_policy_dict",
    "PreferredMemory": "preferred_memory_type preferred_device_id=",
    "Tensor": "name array",
    "Tensor.__dlpack__": "self stream= **_",
    "Tensor.__dlpack_device__": "self",
    "Tensor.as_numpy": "self",
    "Tensor.from_dlpack": "name tensor",
    "Tensor.is_cpu": "self",
    "Tensor.name": "self",
    "Tensor.shape": "self",
    "Tensor.to_dlpack": "self",
    "Tensor.triton_dtype": "self",
    "TritonError": "message code=",
    "TritonError.code": "self",
    "TritonError.message": "self",
    "deserialize_bytes_tensor": "encoded_tensor",
    "get_input_config_by_name": "model_config name",
    "get_input_tensor_by_name": "inference_request name",
    "get_model_dir": "",
    "get_output_config_by_name": "model_config name",
    "get_output_tensor_by_name": "inference_response name",
    "is_model_ready": "model_name model_version=",
    "load_model": "model_name config= files=",
    "numpy_to_triton_type": "data_type",
    "serialize_byte_tensor": "input_tensor",
    "triton_string_to_numpy": "triton_type_string",
    "triton_to_numpy_type": "data_type",
    "unload_model": "model_name unload_dependents=",
    "using_decoupled_model_transaction_policy": "model_config",
}
BESIDE = {
    "InferenceResponseSender.send": "self response= flags=",
    "InferenceResponseSender.is_cancelled": "self",
    "InferenceTrace.get_context": "self",
    "Metric.increment": "self value",
    "Metric.set": "self value",
    "Metric.observe": "self value",
    "Metric.value": "self",
    "ResponseIterator.cancel": "self",
    "ResponseIterator.__iter__": "self",
    "ResponseIterator.__next__": "self",
}
CONSTANTS = {
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START": 1,
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END": 2,
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL": 1,
    "TRITONSERVER_REQUEST_RELEASE_ALL": 1,
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE": 2,
    "TRITONSERVER_MEMORY_GPU": 0,
    "TRITONSERVER_MEMORY_CPU": 1,
    "MetricFamily.COUNTER": 0,
    "MetricFamily.GAUGE": 1,
    "MetricFamily.HISTOGRAM": 2,
    "Logger.INFO": 0,
    "Logger.WARNING": 1,
    "Logger.ERROR": 2,
    "Logger.VERBOSE": 3,
    "TritonError.UNKNOWN": 0,
    "TritonError.INTERNAL": 1,
    "TritonError.NOT_FOUND": 2,
    "TritonError.INVALID_ARG": 3,
    "TritonError.UNAVAILABLE": 4,
    "TritonError.UNSUPPORTED": 5,
    "TritonError.ALREADY_EXISTS": 6,
    "TritonError.CANCELLED": 7,
}


def member(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return module


def parameters(function):
    shown = []
    for name, parameter in inspect.signature(function).parameters.items():
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        shown.append(star + name + ("" if parameter.default is parameter.empty else "="))
    return " ".join(shown)


def request(**more):
    return pb_utils.InferenceRequest(**dict({"model_name": "m", "inputs": [], "requested_output_names": ["o"]}, **more))


class TestMembers(unittest.TestCase):
    def test_every_member_has_its_name_and_signature(self):
        for path, expected in MEMBERS.items():
            self.assertEqual((path, parameters(member(pb_utils, path))), (path, expected))
        for path, expected in BESIDE.items():
            self.assertEqual((path, parameters(member(c_python_backend_utils, path))), (path, expected))

    def test_every_constant_has_its_value(self):
        for path, expected in CONSTANTS.items():
            self.assertEqual((path, int(member(pb_utils, path))), (path, expected))
        self.assertTrue(issubclass(pb_utils.TritonModelException, Exception))

    def test_both_modules_have_the_same_classes(self):
        for name in c_python_backend_utils.__all__:
            if hasattr(pb_utils, name):
                self.assertIs(getattr(pb_utils, name), getattr(c_python_backend_utils, name))

    def test_a_request_says_what_it_was_made_of(self):
        tensor = pb_utils.Tensor("a", np.zeros(1))
        made = request(request_id="r", correlation_id="c", inputs=[tensor], flags=3, timeout=7, parameters={"a": 1, "b": True, "c": "x"})
        self.assertEqual((made.request_id(), made.correlation_id(), made.inputs()), ("r", "c", [tensor]))
        self.assertEqual((made.flags(), made.timeout(), made.requested_output_names()), (3, 7, {"o"}))
        self.assertEqual(made.parameters(), '{"a": 1, "b": true, "c": "x"}')
        made.set_flags(1)
        self.assertEqual(made.flags(), 1)
        empty = request()
        self.assertEqual((empty.request_id(), empty.correlation_id(), empty.flags(), empty.timeout()), ("", 0, 0, 0))
        self.assertEqual((empty.parameters(), empty.trace().get_context(), empty.is_cancelled()), ("{}", None, False))

    def test_a_correlation_id_is_never_none(self):
        with self.assertRaises(TypeError):
            request(correlation_id=None)

    def test_what_is_refused_has_tritons_text(self):
        error = pb_utils.TritonModelException
        cases = (
            (lambda: pb_utils.Tensor("", np.zeros(1)), error, "Tensor name cannot be an empty string."),
            (lambda: pb_utils.Tensor("a", np.zeros(1, np.complex64)), error, "NumPy dtype is not supported."),
            (lambda: pb_utils.Tensor("a", np.array(["x"])), error, "NumPy dtype is not supported."),
            (lambda: pb_utils.Tensor("a", [1]), TypeError, "Tensor(name: str, array: numpy.ndarray)"),
            (lambda: request(inputs=[None]), error, "Input tensor for request with id '' and model name 'm' should not be empty."),
            (lambda: request(requested_output_names=[""]), error, "Requested output name for request with id '' and model name 'm'"),
            (lambda: request(correlation_id=2.5), error, "Correlation ID must be integer or string"),
            (lambda: request(parameters={"a": 1.5}), error, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
            (lambda: request(parameters={3: 1}), error, "Expect parameters keys to have type str, found type <class 'int'>"),
            (lambda: request(parameters=[]), error, "Expect parameters to be a dict, got <class 'list'>"),
            (lambda: pb_utils.InferenceResponse(parameters=[]), error, "Expect parameters to be a dict, got <class 'list'>"),
            (lambda: pb_utils.InferenceRequest(), TypeError, "needs inputs"),
            (lambda: request(request_id=None), TypeError, "request_id and model_name must be a str"),
            (lambda: request(requested_output_names=[None]), TypeError, "requested_output_names must be a list of str"),
            (lambda: request(flags=None), TypeError, "NoneType"),
            (lambda: request(timeout=1.5), TypeError, "float"),
            (lambda: request(model_version="1"), TypeError, "str"),
            (lambda: pb_utils.InferenceResponse([None]), error, "Output tensor for inference response should not be empty."),
            (lambda: pb_utils.InferenceResponse([3]), TypeError, "output_tensors must be a list of Tensors"),
            (lambda: pb_utils.InferenceResponse(error="x"), TypeError, "error must be a TritonError"),
            (lambda: pb_utils.TritonError("x", 3), TypeError, "code must be one of"),
            (lambda: pb_utils.PreferredMemory(1), TypeError, "preferred_memory_type"),
            (lambda: pb_utils.Logger(), TypeError, "no objects"),
            (lambda: pb_utils.Logger.log("x", 3), TypeError, "level must be"),
        )
        for call, kind, text in cases:
            with self.subTest(text), self.assertRaises(kind) as raised:
                call()
            self.assertIn(text, str(raised.exception))


class TestAlone(unittest.TestCase):
    def test_metrics_count_without_a_server(self):
        metric = pb_utils.MetricFamily("m", "d", pb_utils.MetricFamily.GAUGE).Metric(labels={"a": "b"})
        metric.set(5)
        metric.increment(-2)
        self.assertEqual(metric.value(), 3)

    def test_what_needs_a_server_says_so(self):
        for call in (request().exec, lambda: pb_utils.load_model("m")):
            with self.assertRaises(pb_utils.TritonModelException):
                call()


class TestHelpers(unittest.TestCase):
    def test_strings_are_serialized_and_back(self):
        array = np.array([["a", b"\xff\0"], ["ü", 3]], np.object_)
        encoded = pb_utils.serialize_byte_tensor(array)
        self.assertEqual(encoded, b"\1\0\0\0a\2\0\0\0\xff\0\2\0\0\0\xc3\xbc\1\0\0\0" + b"3")
        self.assertEqual(list(pb_utils.deserialize_bytes_tensor(encoded)), [b"a", b"\xff\0", b"\xc3\xbc", b"3"])
        self.assertEqual(pb_utils.serialize_byte_tensor(np.array([b"ab", b"c"])), b"\2\0\0\0ab\1\0\0\0c")
        self.assertEqual(pb_utils.serialize_byte_tensor(np.array([], np.object_)), ())
        self.assertIsNone(pb_utils.serialize_byte_tensor(np.zeros(1)))
        # Elements of one length stay elements.
        self.assertEqual(pb_utils.deserialize_bytes_tensor(b"\1\0\0\0a\1\0\0\0b").shape, (2,))
        with self.assertRaises(ValueError):
            pb_utils.deserialize_bytes_tensor(b"\5\0\0\0ab")

    def test_datatypes_have_numbers_and_names(self):
        for number, name, kind in (
            (1, "BOOL", np.bool_), (2, "UINT8", np.uint8), (5, "UINT64", np.uint64), (9, "INT64", np.int64), (10, "FP16", np.float16),
            (11, "FP32", np.float32), (12, "FP64", np.float64), (13, "STRING", np.object_),
        ):  # fmt: skip
            self.assertEqual(pb_utils.triton_to_numpy_type(number), kind)
            self.assertEqual(pb_utils.numpy_to_triton_type(kind), number)
            self.assertEqual(np.dtype(pb_utils.triton_string_to_numpy("TYPE_" + name)), np.dtype(kind))
        self.assertEqual(pb_utils.numpy_to_triton_type(np.bytes_), 13)
        self.assertIsNone(pb_utils.triton_to_numpy_type(99))
        with self.assertRaises(KeyError):
            pb_utils.triton_string_to_numpy("TYPE_NONE")

    def test_configurations_are_searched(self):
        config = {"input": [{"name": "a"}], "output": [{"name": "b"}], "model_transaction_policy": {"decoupled": True}}
        self.assertEqual(pb_utils.get_input_config_by_name(config, "a"), {"name": "a"})
        self.assertEqual(pb_utils.get_output_config_by_name(config, "b"), {"name": "b"})
        self.assertIsNone(pb_utils.get_input_config_by_name({}, "a"))
        self.assertTrue(pb_utils.using_decoupled_model_transaction_policy(config))
        self.assertFalse(pb_utils.using_decoupled_model_transaction_policy({}))


class TestModelConfig(unittest.TestCase):
    def made(self, **more):
        return pb_utils.ModelConfig(json.dumps(dict({"name": "m", "max_batch_size": 4, "input": [], "output": []}, **more)))

    def test_what_is_not_configured_is_filled_in(self):
        config = self.made(input=[{"name": "a", "data_type": "TYPE_INVALID", "dims": []}])
        config.add_input({"name": "a", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
        config.add_output({"name": "o", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        config.set_model_transaction_policy({"decoupled": True})
        self.assertEqual(
            config.as_dict(),
            {
                "name": "m",
                "max_batch_size": 8,
                "input": [{"name": "a", "data_type": "TYPE_FP32", "dims": [4], "optional": True}],
                "output": [{"name": "o", "data_type": "TYPE_FP32", "dims": [4]}],
                "dynamic_batching": {},
                "model_transaction_policy": {"decoupled": True},
            },
        )

    def test_what_contradicts_the_configuration_is_refused(self):
        present = [{"name": "a", "data_type": "TYPE_FP32", "dims": [4], "optional": True}]
        added = {"name": "a", "data_type": "TYPE_FP32", "dims": [4]}
        cases = (
            (lambda c: c.set_max_batch_size(3), "specified max_batch_size 4, but in auto-complete-config function for model 'm' specified max_batch_size 3"),
            (lambda c: c.add_input(dict(added, data_type="TYPE_INT8")), "expects datatype TYPE_FP32 for input 'a', model provides TYPE_INT8"),
            (lambda c: c.add_output(dict(added, dims=[5])), "tensor 'a': the model expects dims [5] but the model configuration specifies dims [4]"),
            (lambda c: c.add_input(dict(added, optional=False)), "the model expects optional False but the model configuration specifies optional True"),
            (lambda c: c.add_input(dict(added, other=1)), "input 'a' in auto-complete-config function for model 'm' contains property other than 'name', 'data_type', 'dims' and 'optional'."),
            (lambda c: c.add_output(dict(added, optional=True)), "contains property other than 'name', 'data_type' and 'dims'."),
            (lambda c: c.add_input({"data_type": "TYPE_FP32"}), "input in auto-complete-config function for model 'm' is missing 'name' property."),
            (lambda c: c.add_output({"name": "a", "dims": [1]}), "output 'a' in auto-complete-config function for model 'm' is missing 'data_type' property."),
            (lambda c: c.set_model_transaction_policy({"decoupled": True}), "which is already set to 'False'."),
            (lambda c: c.set_model_transaction_policy({"other": True}), "contains property other than 'decoupled'."),
            (lambda c: c.set_dynamic_batching(), "Configuration specified scheduling_choice as 'sequence_batching'"),
        )  # fmt: skip
        for change, text in cases:
            config = self.made(input=present, output=present, sequence_batching={}, model_transaction_policy={"decoupled": False})
            with self.subTest(text), self.assertRaises(ValueError) as raised:
                change(config)
            self.assertIn(text, str(raised.exception))


class TestDLPack(unittest.TestCase):
    def test_numpy_takes_a_tensor_and_shares_its_memory(self):
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        tensor = pb_utils.Tensor("a", array)
        self.assertEqual(tensor.__dlpack_device__(), (1, 0))
        back = pb_utils.Tensor.from_dlpack("b", tensor)
        array[1, 2] = 77
        self.assertEqual((back.name(), back.as_numpy()[1, 2], back.shape()), ("b", 77, [3, 4]))
        if hasattr(np, "from_dlpack"):
            self.assertEqual(np.from_dlpack(tensor)[1, 2], 77)

    def test_memory_is_held_by_who_has_the_capsule_and_the_array(self):
        for kind in "? u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8".split():
            array = np.ones((5, 2), kind)
            free = sys.getrefcount(array)
            capsule = pb_utils.Tensor("a", array).to_dlpack()
            self.assertGreater(sys.getrefcount(array), free)
            back = pb_utils.Tensor.from_dlpack("b", capsule).as_numpy()
            del capsule
            self.assertEqual((back.dtype, back.tolist()), (array.dtype, array.tolist()))
            self.assertGreater(sys.getrefcount(array), free)
            del back
            self.assertEqual(sys.getrefcount(array), free)
            pb_utils.Tensor("a", array).to_dlpack()  # nobody takes it
            self.assertEqual(sys.getrefcount(array), free)

    def test_what_is_not_taken(self):
        capsule = pb_utils.Tensor("a", np.zeros(1)).to_dlpack()
        pb_utils.Tensor.from_dlpack("b", capsule)
        held = pb_utils.Tensor("a", np.zeros(2))
        alone = sys.getrefcount(held)
        capsules = [held.to_dlpack()]
        self.assertEqual(sys.getrefcount(held), alone + 1)
        capsules.clear()
        self.assertEqual(sys.getrefcount(held), alone)
        texts = pb_utils.Tensor("a", np.array([b"x"], np.object_))
        cases = (
            (lambda: pb_utils.Tensor.from_dlpack("b", 3), "Provided tensor is not supported."),
            (lambda: pb_utils.Tensor.from_dlpack("b", capsule), "was used before"),
            (lambda: pb_utils.Tensor.from_dlpack("", capsule), "Tensor name cannot be an empty string."),
            (lambda: texts.to_dlpack(), "DLPack does not have support for string tensors."),
        )
        for call, text in cases:
            with self.subTest(text), self.assertRaises(pb_utils.TritonModelException) as raised:
                call()
            self.assertIn(text, str(raised.exception))
        if hasattr(np, "from_dlpack"):
            with self.assertRaises(pb_utils.TritonModelException) as raised:
                pb_utils.Tensor.from_dlpack("b", np.zeros((3, 4)).T)
            self.assertIn("not contiguous", str(raised.exception))
            for empty in (np.zeros((1, 0)), np.zeros((0, 3)).T):
                self.assertEqual(pb_utils.Tensor.from_dlpack("b", empty).shape(), list(empty.shape))

    def test_torch_shares_memory_and_has_bf16(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not here")
        source = torch.arange(6, dtype=torch.bfloat16)
        tensor = pb_utils.Tensor.from_dlpack("a", source)
        with self.assertRaises(pb_utils.TritonModelException):
            tensor.as_numpy()
        back = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        source[3] = 9
        self.assertEqual((back.dtype, back[3].item()), (torch.bfloat16, 9))


class TestFloor(unittest.TestCase):
    # What the modules that the package imports have got since Python 3.8.
    NEWER = {
        "removeprefix", "removesuffix", "bit_count", "pairwise", "batched", "to_thread", "TaskGroup", "Runner", "send_fds",
        "recv_fds", "F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SHRINK", "unparse", "cache", "randbytes", "BooleanOptionalAction", "ExceptionGroup",
        "add_note", "override", "Self", "ParamSpec", "TypeAlias", "StrEnum", "reveal_type",
    }  # fmt: skip

    def test_the_package_runs_on_python_3_8(self):
        seen = 0
        for directory, _, names in os.walk(PACKAGE):
            if directory.startswith(os.path.join(PACKAGE, "tests")):
                continue
            for name in names:
                if not name.endswith(".py"):
                    continue
                seen += 1
                path = os.path.join(directory, name)
                with open(path) as file:
                    tree = ast.parse(file.read(), path, feature_version=(3, 8))
                for node in ast.walk(tree):
                    used = getattr(node, "attr", None) or getattr(node, "id", None)
                    self.assertNotIn(used, self.NEWER, "%s:%s" % (path, getattr(node, "lineno", 0)))
                    if isinstance(node, ast.AnnAssign) or isinstance(node, ast.arg):
                        # list[int] and X | Y are evaluated, and need 3.9 and 3.10.
                        for part in ast.walk(node.annotation) if node.annotation else ():
                            builtin = isinstance(part, ast.Subscript) and getattr(part.value, "id", "") in ("list", "dict", "tuple", "set", "type")
                            self.assertFalse(builtin or isinstance(part, ast.BinOp), "%s:%d" % (path, node.lineno))
        self.assertGreater(seen, 10)


if __name__ == "__main__":
    unittest.main()
