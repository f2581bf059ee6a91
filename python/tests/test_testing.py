"""Models that are run without a server."""

import os
import tempfile
import textwrap
import unittest

import numpy as np
import triton_python_backend_utils as pb_utils
from nereid.testing import Model, ModelError, Request

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

    def test_an_instance_on_a_gpu(self):
        for gpu, want in ((None, [b"CPU", b"0"]), (3, [b"GPU", b"3"])):
            model = self.model("""
                class TritonPythonModel:
                    def initialize(self, args):
                        self.where = [args["model_instance_kind"], args["model_instance_device_id"]]

                    def execute(self, requests):
                        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(self.where, np.object_))]) for r in requests]
            """, gpu=gpu)
            self.assertEqual([bytes(w, "utf-8") if isinstance(w, str) else w for w in model(X=np.zeros(1, np.float32))["Y"].tolist()], want)

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

    def test_parameters(self):
        model = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    return [
                        pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([r.request_id() + r.parameters()], np.object_))])
                        for r in requests
                    ]
        """)
        [[first], [second]] = model.batch([Request({}, {"n": 3}, id="a"), {}])
        self.assertEqual((first["Y"].tolist(), second["Y"].tolist()), (['a{"n": 3}'], ["{}"]))

    def test_a_client_that_goes_away(self):
        model = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    for request in requests:
                        sender = request.get_response_sender()
                        while not sender.is_cancelled():
                            assert not request.is_cancelled()
                            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([1]))]))
                        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """)
        [responses] = model.batch([Request({}, canceled_after=3)])
        self.assertEqual(len(responses), 3)

    def test_calls_are_answered_by_what_is_given(self):
        asks = """
            import asyncio

            class TritonPythonModel:
                ASYNCexecute(self, requests):
                    made = [
                        pb_utils.InferenceRequest(
                            model_name=r.inputs()[0].name(), requested_output_names=["Y"], inputs=[pb_utils.Tensor("X", r.inputs()[0].as_numpy())]
                        )
                        for r in requests
                    ]
                    return [
                        pb_utils.InferenceResponse(error=r.error()) if r.has_error() else pb_utils.InferenceResponse(r.output_tensors())
                        for r in CALLS
                    ]
        """
        sync = asks.replace("ASYNC", "def ").replace("CALLS", "[one.exec() for one in made]")
        gathers = asks.replace("ASYNC", "async def ").replace("CALLS", "await asyncio.gather(*(one.async_exec() for one in made))")

        def breaks(X):
            raise ValueError("no " + str(X[0]))

        given = {"double": lambda X: {"Y": 2 * X, "Z": X}, "breaks": breaks, "several": lambda X: [{"Y": X}, {"Y": X}]}
        for source in (sync, gathers):
            model = self.model(source, models=given)
            [[first], [second]] = model.batch([{"double": [1]}, {"double": [4]}])
            self.assertEqual(({k: v.tolist() for k, v in first.items()}, second["Y"].tolist()), ({"Y": [2]}, [8]))
            for inputs, code, text in (
                ({"breaks": [7]}, "INTERNAL", "ValueError: no 7"),
                ({"nobody": [7]}, "NOT_FOUND", "Model 'nobody' is not ready"),
                ({"several": [7]}, "INTERNAL", "gave 2: call it with decoupled=True"),
            ):
                with self.assertRaisesRegex(ModelError, text) as caught:
                    model(**inputs)
                self.assertEqual(caught.exception.code, getattr(pb_utils.TritonError, code))
            outer = self.model(gathers, models={"inner": lambda X: model(double=X)})
            self.assertEqual(outer(inner=[3])["Y"].tolist(), [6])
            self.assertEqual(model(double=[1])["Y"].tolist(), [2])

    def test_a_called_model_gives_several_responses(self):
        counts = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    for request in requests:
                        sender = request.get_response_sender()
                        for n in range(json.loads(request.parameters())["n"]):
                            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([n]))]))
                        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """)
        adds = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    call = pb_utils.InferenceRequest(model_name="counts", requested_output_names=["N"], inputs=[], parameters={"n": 4})
                    total = sum(one.output_tensors()[0].as_numpy()[0] for one in call.exec(decoupled=True))
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([total]))]) for r in requests]
        """, models={"counts": counts})
        self.assertEqual(adds()["Y"].tolist(), [6])

    def test_threads_that_go_on(self):
        source = """
            import threading

            class TritonPythonModel:
                def execute(self, requests):
                    for request in requests:
                        threading.Thread(target=self.answer, args=(request,), daemon=True).start()

                def answer(self, request):
                    sender = request.get_response_sender()
                    WORK
        """
        final = "sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)"
        self.assertEqual(self.model(source.replace("WORK", final)).responses(), [])
        with self.assertRaisesRegex(AssertionError, "dropped the request without ending it"):
            self.model(source.replace("WORK", "pass"))()
        with self.assertRaisesRegex(AssertionError, "has not ended the request 0.01 s after"):
            self.model(source.replace("WORK", "threading.Event().wait()"), timeout=0.01)()

    def test_what_has_no_end(self):
        model = self.model("""
            class TritonPythonModel:
                def execute(self, requests):
                    return None
        """)
        with self.assertRaisesRegex(AssertionError, "dropped the request without ending it"):
            model()
        with tempfile.TemporaryDirectory() as empty:
            with self.assertRaisesRegex(FileNotFoundError, "has no version"):
                Model(empty)


if __name__ == "__main__":
    unittest.main()
