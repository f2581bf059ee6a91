"""The real Triton clients and a decoupled model: the repeat backend's.

GRPC_URL and HTTP_URL say where the server is.
"""

import os
import queue
import time
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

GRPC_URL = os.environ["GRPC_URL"]
HTTP_URL = os.environ["HTTP_URL"]


def tensors(module, values, delays, wait=0):
    """Returns the inputs of a request: values, and milliseconds."""
    made = []
    for name, data, datatype in (
        ("IN", np.array(values, dtype=np.int32), "INT32"),
        ("DELAY", np.array(delays, dtype=np.uint32), "UINT32"),
        ("WAIT", np.array([wait], dtype=np.uint32), "UINT32"),
    ):
        tensor = module.InferInput(name, list(data.shape), datatype)
        tensor.set_data_from_numpy(data)
        made.append(tensor)
    return made


def told(item):
    """Returns what a response says: its request, its value and index, and whether it is the last."""
    result, error = item
    if error is not None:
        return str(error)
    response = result.get_response()
    final = response.parameters["triton_final_response"].bool_param
    if not response.outputs:
        return (response.id, "empty", final)
    return (response.id, int(result.as_numpy("OUT")[0]), int(result.as_numpy("IDX")[0]), final)


class Decoupled(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.items = queue.Queue()
        self.client = grpc_client.InferenceServerClient(GRPC_URL)
        self.addCleanup(self.client.close)
        self.client.start_stream(lambda result, error: self.items.put((result, error)))

    def send(self, request_id, values, delays, model="repeat", **options):
        self.client.async_stream_infer(model, tensors(grpc_client, values, delays), request_id=request_id, **options)

    def told(self, count):
        return [told(self.items.get(timeout=60)) for _ in range(count)]

    def nothing_more(self):
        self.client.stop_stream()  # after all responses
        self.assertEqual([told(item) for item in list(self.items.queue)], [])

    def test_each_element_is_a_response(self):
        self.send("a", [4, 2], [0, 1])
        self.assertEqual(self.told(2), [("a", 4, 0, False), ("a", 2, 1, False)])
        self.nothing_more()

    def test_the_end_is_told_to_whom_asks(self):
        self.send("a", [4, 2], [0, 1], enable_empty_final_response=True)
        self.assertEqual(self.told(3), [("a", 4, 0, False), ("a", 2, 1, False), ("a", "empty", True)])
        self.nothing_more()

    def test_no_responses(self):
        self.send("silent", [], [])
        self.send("a", [], [], enable_empty_final_response=True)
        self.assertEqual(self.told(1), [("a", "empty", True)])
        self.nothing_more()

    def test_the_end_names_its_model(self):
        self.send("a", [], [], enable_empty_final_response=True)
        result, error = self.items.get(timeout=60)
        self.assertIsNone(error)
        response = result.get_response()
        self.assertEqual((response.id, response.model_name, len(response.outputs)), ("a", "repeat", 0))

    def test_requests_of_a_stream_mingle_and_keep_their_order(self):
        requests, length = 20, 25
        for n in range(requests):
            self.send(str(n), [100 * n + i for i in range(length)], [n % 3] * length, enable_empty_final_response=True)
        by_request = {}
        for item in self.told(requests * (length + 1)):
            by_request.setdefault(item[0], []).append(item)
        for n in range(requests):
            want = [(str(n), 100 * n + i, i, False) for i in range(length)] + [(str(n), "empty", True)]
            self.assertEqual(by_request[str(n)], want)
        self.nothing_more()

    def test_a_canceled_stream_ends_its_requests(self):
        for n in range(8):
            self.send(str(n), [1, 2], [0, 4_000_000])
        self.told(8)  # the first of each
        self.client.stop_stream(cancel_requests=True)
        self.assertIn("CANCELLED", told(self.items.get(timeout=60)))
        # The instance and its requests are free: another one has its responses.
        self.client.start_stream(lambda result, error: self.items.put((result, error)))
        self.send("next", [5], [0])
        self.assertEqual(self.told(1), [("next", 5, 0, False)])

    def test_an_error_is_the_end(self):
        self.send("a", [1, 2], [0], enable_empty_final_response=True)
        self.assertIn("expected IN and DELAY shape to match, got [2] and [1]", self.told(1)[0])
        self.send("b", [3], [0], enable_empty_final_response=True)
        self.assertEqual(self.told(2), [("b", 3, 0, False), ("b", "empty", True)])
        self.nothing_more()

    def test_models_that_give_one_say_that_it_is_the_last(self):
        x = grpc_client.InferInput("x", [1, 1], "INT32")
        x.set_data_from_numpy(np.array([[7]], dtype=np.int32))
        for empty in (False, True):
            self.client.async_stream_infer("one", [x], request_id="a", enable_empty_final_response=empty)
            result, error = self.items.get(timeout=60)
            self.assertIsNone(error)
            self.assertTrue(result.get_response().parameters["triton_final_response"].bool_param)
            self.assertEqual(result.as_numpy("y").tolist(), [[7]])
        self.nothing_more()

    def test_statistics_of_responses(self):
        def counts():
            ours = {str(i): {} for i in range(2)}
            with http_client.InferenceServerClient(HTTP_URL) as client:
                told = client.get_inference_statistics("counted")["model_stats"][0]["response_stats"]
            over_grpc = self.client.get_inference_statistics("counted").model_stats[0].response_stats
            for index, stats in told.items():
                ours[index] = {kind: stat["count"] for kind, stat in stats.items() if stat["count"]}
                self.assertEqual(stats["empty_response"]["count"], over_grpc[index].empty_response.count)
                self.assertEqual(stats["success"]["ns"], over_grpc[index].success.ns)
            return ours

        for request_id in ("a", "b"):
            self.send(request_id, [1], [0], model="counted", enable_empty_final_response=True)
        self.told(4)
        self.send("c", [], [], model="counted", enable_empty_final_response=True)
        self.told(1)
        want = {
            "0": {"compute_infer": 2, "compute_output": 2, "success": 2, "empty_response": 1},
            "1": {"empty_response": 2},
        }
        deadline = time.monotonic() + 60  # what is counted may be counted after its response
        while counts() != want and time.monotonic() < deadline:
            pass
        self.assertEqual(counts(), want)

    def test_calls_that_give_one_response_are_refused(self):
        with self.assertRaises(InferenceServerException) as refused:
            self.client.infer("repeat", tensors(grpc_client, [1], [0]))
        self.assertEqual(refused.exception.status(), "StatusCode.UNIMPLEMENTED")
        self.assertEqual(refused.exception.message(), "ModelInfer RPC doesn't support models with decoupled transaction policy")
        with http_client.InferenceServerClient(HTTP_URL) as client:
            with self.assertRaises(InferenceServerException) as refused:
                client.infer("repeat", tensors(http_client, [1], [0]))
        self.assertEqual(refused.exception.status(), "501")
        self.assertEqual(refused.exception.message(), "HTTP end point doesn't support models with decoupled transaction policy")


if __name__ == "__main__":
    unittest.main()
