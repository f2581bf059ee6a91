"""The real Triton client against a running server, over HTTP, gRPC and asyncio.

The server serves examples/models; HTTP_URL and GRPC_URL say where. The tests
of one protocol are those of the other: what a client can do over one it can
do over the other, with the same answers and the same errors.
"""

import asyncio
import os
import time
import unittest
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

HTTP_URL = os.environ["HTTP_URL"]
GRPC_URL = os.environ["GRPC_URL"]

MODELS = Path(__file__).resolve().parents[3] / "examples" / "models"
PATIENCE = 60  # seconds, for what takes none of them
EXTENSIONS = {"classification", "binary_tensor_data", "parameters", "model_configuration", "statistics"}
PHASES = set("success fail queue compute_input compute_infer compute_output cache_hit cache_miss".split())


def integers(module, rows=1):
    """Two INT32 inputs of [rows, 16], and the arrays in them."""
    first = np.arange(16 * rows, dtype=np.int32).reshape(rows, 16)
    second = np.full((rows, 16), 3, dtype=np.int32)
    inputs = []
    for name, data in (("INPUT0", first), ("INPUT1", second)):
        tensor = module.InferInput(name, list(data.shape), "INT32")
        tensor.set_data_from_numpy(data)
        inputs.append(tensor)
    return inputs, first, second


def scored(module):
    """Requests for models whose probabilities have labels: model, inputs, and the labels by class."""
    images = np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 1, 8, 8)
    text = np.frombuffer(b"def main() -> None:\n    print(1)\n", np.uint8)[None]
    for model, name, datatype, data in (("digits", "image", "FP32", images), ("language", "text", "UINT8", text)):
        tensor = module.InferInput(name, list(data.shape), datatype)
        tensor.set_data_from_numpy(data)
        labels = (MODELS / model / f"{model}_labels.txt").read_text().splitlines()
        yield model, [tensor], labels


def classes_of(probabilities, count, labels):
    """What the server should make of the probabilities."""
    rows = []
    for row in probabilities:
        best = np.argsort(-row, kind="stable")[:count]
        rows.append([f"{row[i]:.6f}:{i}" + (f":{labels[i]}" if labels else "") for i in best])
    return rows


def texts(array):
    """The strings of a BYTES output, whatever the protocol gives them as."""
    return [[text.decode() if isinstance(text, bytes) else text for text in row] for row in array.tolist()]


def check_statistics(answer):
    """The models' counts, after a check that those fit together that tools divide by each other."""
    found = {}
    for model in answer["model_stats"]:
        stats = model["inference_stats"]
        counts = {phase: int(stats[phase].get("count", 0)) for phase in stats}
        phases = {counts[phase] for phase in ("queue", "compute_input", "compute_infer", "compute_output")}
        assert phases == {counts["success"]}, model
        assert set(stats) == PHASES, model
        found[model["name"]] = {
            "success": counts["success"],
            "inference_count": int(model.get("inference_count", 0)),
            "last_inference": int(model.get("last_inference", 0)),
            "batches": {int(batch["batch_size"]): int(batch["compute_infer"]["count"]) for batch in model.get("batch_stats", [])},
        }
    return found


def tries():
    """Tries for what comes about by itself: an answer may be here before it is counted."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield


class Protocol:
    """What every protocol's client must be able to do."""

    module = None

    def test_server_is_live_and_ready(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready("digits"))
        self.assertTrue(self.client.is_model_ready("digits", "1"))

    def test_unknown_model_is_not_ready(self):
        try:
            self.assertFalse(self.client.is_model_ready("nonesuch"))
        except InferenceServerException as error:
            self.assertIn("nonesuch", error.message())

    def test_sum_and_difference(self):
        inputs, first, second = integers(self.module)
        result = self.client.infer("simple", inputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)

    def test_a_batch_up_to_the_maximum(self):
        inputs, first, second = integers(self.module, rows=8)
        result = self.client.infer("simple", inputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)

    def test_requested_outputs_and_id(self):
        inputs, first, second = integers(self.module)
        outputs = [self.module.InferRequestedOutput("OUTPUT1")]
        result = self.client.infer("simple", inputs, outputs=outputs, request_id="mine")
        self.assertIsNone(result.as_numpy("OUTPUT0"))
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)
        response = result.get_response()
        self.assertEqual(response["id"] if isinstance(response, dict) else response.id, "mine")

    def test_strings(self):
        texts = np.array([["", "plain", "gr\u00fc\u00df", "\u2603" * 50]], dtype=object)
        tensor = self.module.InferInput("INPUT0", list(texts.shape), "BYTES")
        tensor.set_data_from_numpy(texts)
        result = self.client.infer("simple_identity", [tensor])
        got = [text.decode() for text in result.as_numpy("OUTPUT0").flatten()]
        self.assertEqual(got, list(texts.flatten()))

    def test_classes_with_labels(self):
        for model, inputs, labels in scored(self.module):
            probabilities = self.client.infer(model, inputs).as_numpy("probabilities")
            for count in (1, 3, 1000):  # there are fewer than the last
                outputs = [self.module.InferRequestedOutput("probabilities", class_count=count)]
                classes = self.client.infer(model, inputs, outputs=outputs).as_numpy("probabilities")
                with self.subTest(model=model, count=count):
                    self.assertEqual(classes.shape, (len(probabilities), min(count, len(labels))))
                    self.assertEqual(texts(classes), classes_of(probabilities, count, labels))

    def test_classes_without_labels_beside_plain_outputs(self):
        _, inputs, _ = next(scored(self.module))
        outputs = [self.module.InferRequestedOutput("logits", class_count=2), self.module.InferRequestedOutput("probabilities")]
        result = self.client.infer("digits", inputs, outputs=outputs)
        best = [[text.rsplit(":", 1)[1] for text in row] for row in texts(result.as_numpy("logits"))]
        want = np.argsort(-result.as_numpy("probabilities"), kind="stable")[:, :2]
        self.assertEqual(best, [[str(i) for i in row] for row in want])

    def test_classes_of_strings(self):
        tensor = self.module.InferInput("INPUT0", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([["x"]], dtype=object))
        outputs = [self.module.InferRequestedOutput("OUTPUT0", class_count=1)]
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("simple_identity", [tensor], outputs=outputs)
        text = "class result not available for output due to unsupported type 'BYTES'"
        self.assertIn(text, caught.exception.message())

    def test_a_failing_model_says_why_and_serves_on(self):
        texts = np.array([["no number"] * 16], dtype=object)
        inputs = []
        for name in ("INPUT0", "INPUT1"):
            tensor = self.module.InferInput(name, [1, 16], "BYTES")
            tensor.set_data_from_numpy(texts)
            inputs.append(tensor)
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("simple_string", inputs)
        self.assertNotEqual(caught.exception.message(), "internal error")
        self.test_sum_and_difference()

    def test_errors_of_the_request(self):
        cases = {
            "unknown model": ("nonesuch", integers(self.module)[0], "Request for unknown model: 'nonesuch'"),
            "too many rows": ("simple", integers(self.module, rows=9)[0], "batch-size must be <= 8"),
            "a missing input": ("simple", integers(self.module)[0][:1], "expected 2 inputs but got 1"),
        }
        for name, (model, inputs, text) in cases.items():
            with self.subTest(name), self.assertRaises(InferenceServerException) as caught:
                self.client.infer(model, inputs)
            self.assertIn(text, caught.exception.message())

    def test_wrong_datatype_and_shape(self):
        for datatype, shape, text in (("FP32", [1, 16], "data-type"), ("INT32", [1, 15], "unexpected shape")):
            inputs = integers(self.module)[0]
            data = np.zeros(shape, np.float32 if datatype == "FP32" else np.int32)
            inputs[0] = self.module.InferInput("INPUT0", shape, datatype)
            inputs[0].set_data_from_numpy(data)
            with self.subTest(text), self.assertRaises(InferenceServerException) as caught:
                self.client.infer("simple", inputs)
            self.assertIn(text, caught.exception.message())

    def test_no_memory_is_shared(self):
        for kind in ("system", "cuda"):
            status = getattr(self.client, f"get_{kind}_shared_memory_status")()
            self.assertFalse(getattr(status, "regions", status))
            for call in (
                lambda: getattr(self.client, f"get_{kind}_shared_memory_status")("r"),
                lambda: getattr(self.client, f"unregister_{kind}_shared_memory")(),
            ):
                with self.subTest(kind), self.assertRaises(InferenceServerException) as caught:
                    call()
                self.assertIn("shared memory", caught.exception.message())
        inputs, _, _ = integers(self.module)
        inputs[0].set_shared_memory("r", 64)
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("simple", inputs)
        self.assertIn("Unable to find shared memory region: 'r'", caught.exception.message())

    def test_configuration(self):
        config = self.config("simple")
        self.assertEqual((config["name"], config["max_batch_size"]), ("simple", 8))
        self.assertEqual(config["input"][0], config["input"][0] | {"name": "INPUT0", "data_type": "TYPE_INT32"})
        self.assertEqual([int(dim) for dim in config["input"][0]["dims"]], [16])
        self.assertGreaterEqual(config["instance_group"][0]["count"], 1)
        with self.assertRaises(InferenceServerException) as caught:
            self.client.get_model_config("nonesuch")
        self.assertIn("Request for unknown model: 'nonesuch'", caught.exception.message())

    def test_statistics(self):
        before = check_statistics(self.statistics("simple"))["simple"]
        inputs, _, _ = integers(self.module, rows=4)
        for _ in range(3):
            self.client.infer("simple", inputs)
        # Nobody else has requests of four rows; others may be counted late.
        batches = before["batches"].get(4, 0) + 3
        for _ in tries():
            after = check_statistics(self.statistics())["simple"]
            if after["batches"].get(4, 0) >= batches:
                break
        self.assertEqual(after["batches"].get(4, 0), batches)
        self.assertGreaterEqual(after["inference_count"] - before["inference_count"], 12)
        self.assertGreaterEqual(after["success"] - before["success"], 3)
        self.assertGreaterEqual(after["last_inference"], before["last_inference"])
        with self.assertRaises(InferenceServerException) as caught:
            self.client.get_inference_statistics("nonesuch")
        self.assertEqual(caught.exception.message(), "requested model 'nonesuch' is not available")

    def test_many_at_once(self):
        inputs, first, second = integers(self.module)
        for result in self.concurrently(inputs, 50):
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)


class OverHTTP(Protocol, unittest.TestCase):
    """tritonclient.http."""

    module = http_client

    def setUp(self):
        self.client = http_client.InferenceServerClient(HTTP_URL, concurrency=8)
        self.addCleanup(self.client.close)

    def concurrently(self, inputs, count):
        requests = [self.client.async_infer("simple", inputs) for _ in range(count)]
        return [request.get_result() for request in requests]

    def config(self, model):
        return self.client.get_model_config(model)

    def statistics(self, model=""):
        return self.client.get_inference_statistics(model)

    def test_numbers_of_a_configuration_are_numbers(self):
        self.assertEqual(self.client.get_model_config("simple")["input"][0]["dims"], [16])

    def test_metadata_and_index(self):
        self.assertLessEqual(EXTENSIONS, set(self.client.get_server_metadata()["extensions"]))
        metadata = self.client.get_model_metadata("simple")
        self.assertEqual(metadata["versions"], ["1"])
        self.assertEqual(metadata["inputs"][0], {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 16]})
        index = {entry["name"]: entry for entry in self.client.get_model_repository_index()}
        self.assertEqual(index["digits"]["state"], "READY")

    def test_json_in_and_out(self):
        inputs, first, second = integers(http_client)
        for tensor, data in zip(inputs, (first, second)):
            tensor.set_data_from_numpy(data, binary_data=False)
        outputs = [http_client.InferRequestedOutput("OUTPUT0", binary_data=False)]
        result = self.client.infer("simple", inputs, outputs=outputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)

    def test_classes_as_json(self):
        for model, inputs, labels in scored(http_client):
            probabilities = self.client.infer(model, inputs).as_numpy("probabilities")
            outputs = [http_client.InferRequestedOutput("probabilities", class_count=2, binary_data=False)]
            answer = self.client.infer(model, inputs, outputs=outputs).get_output("probabilities")
            self.assertEqual((answer["datatype"], answer["shape"]), ("BYTES", [len(probabilities), 2]))
            self.assertEqual(answer["data"], sum(classes_of(probabilities, 2, labels), []))

    def test_compressed_both_ways(self):
        inputs, first, second = integers(http_client)
        for algorithm in ("gzip", "deflate"):
            result = self.client.infer(
                "simple", inputs, request_compression_algorithm=algorithm, response_compression_algorithm=algorithm
            )
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)


class OverGRPC(Protocol, unittest.TestCase):
    """tritonclient.grpc."""

    module = grpc_client

    def setUp(self):
        self.client = grpc_client.InferenceServerClient(GRPC_URL)
        self.addCleanup(self.client.close)

    def concurrently(self, inputs, count):
        import queue

        answers = queue.Queue()
        for _ in range(count):
            self.client.async_infer("simple", inputs, callback=lambda result, error: answers.put((result, error)))
        results = []
        for _ in range(count):
            result, error = answers.get(timeout=60)
            self.assertIsNone(error)
            results.append(result)
        return results

    def config(self, model):
        return self.client.get_model_config(model, as_json=True)["config"]

    def statistics(self, model=""):
        return self.client.get_inference_statistics(model, as_json=True)

    def test_metadata_and_index(self):
        self.assertLessEqual(EXTENSIONS, set(self.client.get_server_metadata().extensions))
        metadata = self.client.get_model_metadata("simple")
        self.assertEqual(list(metadata.versions), ["1"])
        self.assertEqual((metadata.inputs[0].name, list(metadata.inputs[0].shape)), ("INPUT0", [-1, 16]))
        index = {entry.name: entry for entry in self.client.get_model_repository_index().models}
        self.assertEqual(index["digits"].state, "READY")

    def test_a_deadline_that_is_ample(self):
        inputs, first, second = integers(grpc_client)
        result = self.client.infer("simple", inputs, client_timeout=60)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)


class OverAsyncio(unittest.IsolatedAsyncioTestCase):
    """tritonclient's asyncio clients."""

    async def test_grpc(self):
        async with grpc_aio.InferenceServerClient(GRPC_URL) as client:
            self.assertTrue(await client.is_server_ready())
            await self.check(client, grpc_client)

    async def test_http(self):
        async with http_aio.InferenceServerClient(HTTP_URL) as client:
            self.assertTrue(await client.is_server_ready())
            await self.check(client, http_client)

    async def check(self, client, module):
        inputs, first, second = integers(module)
        results = await asyncio.gather(*(client.infer("simple", inputs) for _ in range(50)))
        for result in results:
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
        with self.assertRaises(InferenceServerException):
            await client.infer("nonesuch", inputs)
        for model, inputs, labels in scored(module):
            probabilities = (await client.infer(model, inputs)).as_numpy("probabilities")
            outputs = [module.InferRequestedOutput("probabilities", class_count=3)]
            classes = (await client.infer(model, inputs, outputs=outputs)).as_numpy("probabilities")
            self.assertEqual(texts(classes), classes_of(probabilities, 3, labels))
        options = {} if module is http_client else {"as_json": True}
        config = await client.get_model_config("simple", **options)
        self.assertEqual(config.get("config", config)["max_batch_size"], 8)
        for _ in tries():
            success = check_statistics(await client.get_inference_statistics("simple", **options))["simple"]["success"]
            if success >= 50:
                break
        self.assertGreaterEqual(success, 50)


if __name__ == "__main__":
    unittest.main()
