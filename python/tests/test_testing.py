"""Models that are run without a server."""

import os
import tempfile
import textwrap
import unittest

import numpy as np
import triton_python_backend_utils as pb_utils
from nereid.testing import Model, ModelError

_HEAD = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils
"""


class Testing(unittest.TestCase):
    def model(self, source, version="1", **options):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "double")
        os.makedirs(os.path.join(path, version))
        with open(os.path.join(path, version, "model.py"), "w") as file:
            file.write(_HEAD + textwrap.dedent(source))
        made = Model(path, **options)
        self.addCleanup(made.close)
        return made

    def test_one_request(self):
        model = self.model("""
            class TritonPythonModel:
                def initialize(self, args):
                    self.factor = int(json.loads(args["model_config"])["parameters"]["factor"]["string_value"])

                def execute(self, requests):
                    return [
                        pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy() * self.factor)]) for r in requests
                    ]
        """, version="7", config={"parameters": {"factor": {"string_value": "3"}}})
        np.testing.assert_array_equal(model(X=np.array([1, 2], np.float32))["Y"], [3, 6])
        first, second = model.batch([{"X": np.array([1], np.int32)}, {"X": np.array([5], np.int32)}])
        self.assertEqual((first[0]["Y"].tolist(), second[0]["Y"].tolist()), ([3], [15]))

    def test_text_is_bytes(self):
        model = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests]
        """)
        self.assertEqual(model(X=["é", "b"])["Y"].tolist(), ["é".encode(), b"b"])

    def test_configuration_is_completed(self):
        model = self.model("""
            class TritonPythonModel:
                @staticmethod
                def auto_complete_config(config):
                    config.set_max_batch_size(8)
                    config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1]})
                    return config

                def initialize(self, args):
                    self.size = json.loads(args["model_config"])["max_batch_size"]

                def execute(self, requests):
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("SIZE", np.array([self.size]))]) for r in requests]
        """)
        self.assertEqual(model()["SIZE"].tolist(), [8])
        self.assertEqual(model.config["input"][0]["name"], "X")

    def test_errors(self):
        model = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    error = pb_utils.TritonError("not like this", pb_utils.TritonError.INVALID_ARG)
                    return [pb_utils.InferenceResponse(error=error) for r in requests]
        """)
        with self.assertRaisesRegex(ModelError, "not like this") as caught:
            model()
        self.assertEqual(caught.exception.code, pb_utils.TritonError.INVALID_ARG)

    def test_decoupled(self):
        model = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    for request in requests:
                        sender = request.get_response_sender()
                        for n in range(int(request.inputs()[0].as_numpy()[0])):
                            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([n]))]))
                        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """)
        self.assertEqual([one["N"].tolist() for one in model.responses(COUNT=[3])], [[0], [1], [2]])
        self.assertEqual(model.responses(COUNT=[0]), [])
        with self.assertRaisesRegex(AssertionError, "2 responses"):
            model(COUNT=[2])

    def test_async(self):
        model = self.model("""
            class TritonPythonModel:
                async def execute(self, requests):
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([1]))]) for r in requests]
        """)
        self.assertEqual(model()["Y"].tolist(), [1])

    def test_what_has_no_end(self):
        model = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    return None
        """)
        with self.assertRaisesRegex(AssertionError, "has not ended the request"):
            model()
        with tempfile.TemporaryDirectory() as empty:
            with self.assertRaisesRegex(FileNotFoundError, "has no version"):
                Model(empty)


if __name__ == "__main__":
    unittest.main()
