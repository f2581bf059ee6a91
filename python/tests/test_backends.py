"""What the frameworks' backends do without their frameworks."""

import json
import unittest

import numpy as np
from nereid.backends import naming
from nereid.backends.complete import Declared, complete
from nereid.backends.host import InvalidModel, Parameters, apart, framework, input_names, output_names, responses, together
from nereid.stub import process
from nereid.stub.config import ModelConfig
from nereid.stub.errors import Refused


class Naming(unittest.TestCase):
    def test_inputs(self):
        for names, arguments, want in (
            (["y", "x"], ["x", "y"], {"y": 1, "x": 0}),
            (["INPUT__1", "INPUT__0"], ["x", "y"], {"INPUT__1": 1, "INPUT__0": 0}),
            (["a__0", "x"], ["x", "y"], {"a__0": 0, "x": 1}),
            (["INPUT__1", "INPUT__2"], ["x", "y"], {"INPUT__1": 0, "INPUT__2": 1}),
            (["INPUT__0", "INPUT__0x"], ["x", "y"], {"INPUT__0": 0, "INPUT__0x": 1}),
            (["b", "a"], ["x", "y"], {"b": 0, "a": 1}),
        ):
            self.assertEqual(naming.input_places(names, arguments), want)

    def test_outputs(self):
        self.assertEqual(naming.output_places(["OUTPUT__2", "OUTPUT__0"]), {"OUTPUT__2": 2, "OUTPUT__0": 0})
        self.assertEqual(naming.output_places(["OUTPUT__2", "other"]), {"OUTPUT__2": 0, "other": 1})

    def test_names_of_sequence_models(self):
        config = {
            "input": [{"name": "x"}],
            "output": [{"name": "y"}],
            "sequence_batching": {"control_input": [{"name": "start"}], "state": [{"input_name": "before", "output_name": "after"}]},
        }
        self.assertEqual((input_names(config), output_names(config)), (["x", "start", "before"], ["y", "after"]))


class Batches(unittest.TestCase):
    def test_requests_are_put_together_and_cut_apart(self):
        inputs, sizes = together([{"x": np.ones((2, 3))}, {"x": np.zeros((1, 3))}])
        self.assertEqual((inputs["x"].shape, sizes), ((3, 3), [2, 1]))
        first, second = apart({"y": inputs["x"] * 2}, sizes)
        self.assertEqual((first["y"].tolist(), second["y"].tolist()), ([[2, 2, 2]] * 2, [[0, 0, 0]]))

    def test_an_output_without_the_batch_is_refused(self):
        for array in (np.array(1), np.ones(2)):
            with self.assertRaisesRegex(InvalidModel, "output 'y' has shape .* for a batch of 3"):
                apart({"y": array}, [2, 1])

    def test_scalars_have_one_element(self):
        [response] = responses([{"y": np.array(3, np.float32)}])
        self.assertEqual(list(response.output_tensors()[0].shape()), [1])


class Completing(unittest.TestCase):
    def complete(self, config, inputs, outputs, settings=None):
        process.runs_model_in("/nowhere", settings or {})
        given = dict({"name": "m", "max_batch_size": 0, "input": [], "output": []}, **config)
        return complete(ModelConfig(json.dumps(given)), inputs, outputs).as_dict()

    def test_a_model_that_batches(self):
        x, y = Declared("x", "TYPE_FP32", [-1, 4]), Declared("y", "TYPE_INT64", [-1])
        got = self.complete({}, [x], [y])
        self.assertEqual((got["max_batch_size"], got["dynamic_batching"]), (4, {}))
        self.assertEqual(got["input"], [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}])
        self.assertEqual(got["output"], [{"name": "y", "data_type": "TYPE_INT64", "dims": [1], "reshape": {"shape": []}}])
        self.assertEqual(self.complete({}, [x], [y], {"default-max-batch-size": "16"})["max_batch_size"], 16)
        self.assertNotIn("dynamic_batching", self.complete({"max_batch_size": 1}, [x], [y]))
        self.assertNotIn("dynamic_batching", self.complete({"max_batch_size": 8, "sequence_batching": {}}, [x], [y]))
        listed = [{"name": "x", "data_type": "TYPE_FP32", "dims": [2, 2]}]
        self.assertEqual(self.complete({"input": listed}, [x], [y])["input"], listed)

    def test_a_model_that_does_not(self):
        x, y = Declared("x", "TYPE_FP32", [2, -1]), Declared("y", "TYPE_FP32", [])
        got = self.complete({}, [x], [y])
        self.assertEqual((got["max_batch_size"], "dynamic_batching" in got), (0, False))
        self.assertEqual((got["input"][0]["dims"], got["output"][0]["dims"]), ([2, -1], [1]))
        with self.assertRaisesRegex(Refused, "model does not support batching while non-zero max_batch_size is specified"):
            self.complete({"max_batch_size": 2}, [x], [y])
        with self.assertRaisesRegex(Refused, "the rank of 'x' is not fixed"):
            self.complete({}, [Declared("x", "TYPE_FP32", None)], [y])


class Opening(unittest.TestCase):
    def test_a_framework_that_is_missing_is_named(self):
        with self.assertRaisesRegex(Refused, "needs the package nosuch-cpu, .* -m pip install nosuch-cpu.*--backend-config=pytorch,python-path"):
            framework("pytorch", "nosuch_framework", "nosuch-cpu")

    def test_parameters(self):
        given = Parameters({"parameters": {key: {"string_value": value} for key, value in (("a", "TRUE"), ("b", "maybe"), ("n", "3"), ("m", "-1"))}})
        self.assertEqual((given.boolean("a"), given.boolean("other"), given.count("n"), given.count("other")), (True, False, 3, 0))
        for wrong in (lambda: given.boolean("b"), lambda: given.count("m")):
            with self.assertRaises(Refused):
                wrong()
