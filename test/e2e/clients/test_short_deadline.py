"""The real Triton clients and a deadline that is shorter than what the model takes.

GRPC_URL and HTTP_URL say where the server is. Its model takes 300 ms.
"""

import http.client
import json
import os
import queue
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

GRPC_URL = os.environ["GRPC_URL"]
HTTP_URL = os.environ["HTTP_URL"]
SHORT = 0.1  # seconds
WARM = 3  # calls after which the server knows what the model takes


def inputs():
    x = grpc_client.InferInput("x", [1, 1], "INT32")
    x.set_data_from_numpy(np.ones([1, 1], dtype=np.int32))
    return [x]


class ShortDeadline(unittest.TestCase):
    """An idle server ends the call as one whose deadline has passed, and does not ask to retry."""

    def setUp(self):
        self.client = grpc_client.InferenceServerClient(GRPC_URL)
        self.addCleanup(self.client.close)
        for _ in range(WARM):
            self.client.infer("slow", inputs())

    def check(self, error):
        self.assertIsInstance(error, InferenceServerException)
        self.assertEqual((error.status(), error.message()), ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded"))

    def test_unary(self):
        with self.assertRaises(InferenceServerException) as raised:
            self.client.infer("slow", inputs(), client_timeout=SHORT)
        self.check(raised.exception)

    def test_stream_ends(self):
        ended = queue.Queue()
        self.client.start_stream(lambda result, error: ended.put(error), stream_timeout=SHORT)
        self.client.async_stream_infer("slow", inputs())
        self.check(ended.get(timeout=20))
        self.client.stop_stream()

    def test_http(self):
        connection = http.client.HTTPConnection(HTTP_URL, timeout=20)
        self.addCleanup(connection.close)
        body = json.dumps({"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [1]}]})
        connection.request("POST", "/v2/models/slow/infer", body, {"X-Request-Timeout": "100ms"})
        response = connection.getresponse()
        answer = response.status, response.getheader("Nereid-Reason"), response.getheader("Retry-After"), json.loads(response.read())
        self.assertEqual(answer, (504, "deadline_too_short", None, {"error": "Deadline Exceeded"}))


if __name__ == "__main__":
    unittest.main()
