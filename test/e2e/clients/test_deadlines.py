"""The real Triton clients and deadlines that pass while their calls wait and run.

GRPC_URL and HTTP_URL say where the server is. Its models take half a minute and have few instances.
"""

import collections
import http.client
import json
import os
import queue
import threading
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

GRPC_URL = os.environ["GRPC_URL"]
HTTP_URL = os.environ["HTTP_URL"]
CALLS = 200
# Deadlines lie close together, so that many pass at once.
DEADLINES = [1 + 0.001 * (i % 100) for i in range(CALLS)]


def inputs():
    x = grpc_client.InferInput("x", [1, 1], "INT32")
    x.set_data_from_numpy(np.ones([1, 1], dtype=np.int32))
    return [x]


def outcome(error):
    if not isinstance(error, InferenceServerException):
        return repr(error)
    return f"{error.status()}: {error.message()}"


class Deadlines(unittest.TestCase):
    """A deadline that passes always ends its call as such."""

    maxDiff = None

    def check_grpc(self, outcomes):
        codes = collections.Counter(outcome.partition(":")[0] for outcome in outcomes)
        self.assertEqual(dict(codes), {"StatusCode.DEADLINE_EXCEEDED": CALLS}, outcomes)
        # Where the processor is short a client may see the end of the stream first, and adds that.
        plain = outcomes.count("StatusCode.DEADLINE_EXCEEDED: Deadline Exceeded")
        self.assertGreater(plain, CALLS // 10, collections.Counter(outcomes))

    def test_unary(self):
        ended = queue.Queue()
        with grpc_client.InferenceServerClient(GRPC_URL) as client:
            for deadline in DEADLINES:
                client.async_infer("unary", inputs(), lambda result, error: ended.put(error), client_timeout=deadline)
            self.check_grpc([outcome(ended.get()) for _ in DEADLINES])

    def test_streams(self):
        ended = queue.Queue()

        def stream(deadline):
            last = queue.Queue()
            with grpc_client.InferenceServerClient(GRPC_URL) as client:
                client.start_stream(lambda result, error: last.put(error), stream_timeout=deadline)
                client.async_stream_infer("stream", inputs())
                error = last.get()
                while isinstance(error, InferenceServerException) and error.status() is None:
                    error = last.get()  # of one request: the stream's own follows
                ended.put(error)

        threads = [threading.Thread(target=stream, args=[deadline]) for deadline in DEADLINES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.check_grpc([outcome(ended.get()) for _ in DEADLINES])

    def test_http(self):
        ended = queue.Queue()
        body = json.dumps({"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [1]}]})

        def call(deadline):
            connection = http.client.HTTPConnection(HTTP_URL)
            connection.request("POST", "/v2/models/http/infer", body, {"X-Request-Timeout": str(deadline)})
            response = connection.getresponse()
            response.read()
            reason = response.headers["Nereid-Reason"]
            ended.put(f"{response.status} {'deadline' if reason in ('deadline_queue', 'deadline_compute') else reason}")
            connection.close()

        threads = [threading.Thread(target=call, args=[deadline]) for deadline in DEADLINES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(dict(collections.Counter(ended.get() for _ in DEADLINES)), {"504 deadline": CALLS})


if __name__ == "__main__":
    unittest.main()
