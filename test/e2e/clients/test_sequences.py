"""Sequences by the real Triton clients, over HTTP, gRPC and gRPC streams, with correlation IDs of both types.

The models give the sum of their inputs since the start of the sequence: "direct" and "oldest", with few slots, so that most sequences wait for
one, and "brief" and "patient" with one slot, whose sequences may be idle for 0.2 s and for very long. HTTP_URL and GRPC_URL say where the server is.
"""

import os
import queue
import time
import unittest
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

HTTP, GRPC = os.environ["HTTP_URL"], os.environ["GRPC_URL"]
NOT_STARTED = "must specify the START flag on the first request of the sequence"


def inputs(module, value):
    tensor = module.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[value]], np.float32))
    return [tensor]


def total(result):
    return float(result.as_numpy("OUTPUT0")[0][0])


def unary(module, client):
    def send(model, sequence, value, start=False, end=False, **options):
        return total(client.infer(model, inputs(module, value), sequence_id=sequence, sequence_start=start, sequence_end=end, **options))

    return send


def values(seed):
    return [float(v) for v in np.random.default_rng(seed).integers(-100, 100, size=5)]


class Sequences(unittest.TestCase):
    def setUp(self):
        self.http = http_client.InferenceServerClient(HTTP)
        self.grpc = grpc_client.InferenceServerClient(GRPC)
        self.addCleanup(self.http.close)
        self.addCleanup(self.grpc.close)

    def ways(self):
        return [unary(http_client, self.http), unary(grpc_client, self.grpc)]

    def run_sequence(self, send, model, sequence):
        seen, sums, listed = 0.0, [], values(zlib.crc32(str(sequence).encode()))
        for i, value in enumerate(listed):
            seen += value
            sums.append(seen)
            got = send(model, sequence, value, i == 0, i == len(listed) - 1)
            self.assertEqual(got, sums[i], f"request {i} of sequence {sequence} of {model}")

    def over_http(self, model, sequence):
        with http_client.InferenceServerClient(HTTP) as client:  # which one thread alone may use
            self.run_sequence(unary(http_client, client), model, sequence)

    def over_grpc(self, model, sequence):
        self.run_sequence(unary(grpc_client, self.grpc), model, sequence)

    def test_64_at_once(self):
        for model in "direct", "oldest":
            with self.subTest(model), ThreadPoolExecutor(64) as pool:
                ids = [n + 1 if n % 4 < 2 else f"call-{n}" for n in range(64)]
                for ended in [pool.submit(self.over_http if n % 2 else self.over_grpc, model, ids[n]) for n in range(64)]:
                    ended.result()

    def test_streams(self):
        """The requests of a stream are sent without a wait for responses, those of 8 sequences in turns."""
        for model in "direct", "oldest":
            with self.subTest(model), grpc_client.InferenceServerClient(GRPC) as client:
                came = queue.Queue()
                client.start_stream(lambda result, error: came.put((result, error)))
                want = {}
                for i in range(6):
                    for n in range(8):
                        sequence = 100 + n if n % 2 else f"stream-{n}"
                        seen = want.get(f"{n}/{i - 1}", 0.0) + i * 10 + n
                        want[f"{n}/{i}"] = seen
                        client.async_stream_infer(
                            model, inputs(grpc_client, i * 10 + n), request_id=f"{n}/{i}", sequence_id=sequence, sequence_start=i == 0, sequence_end=i == 5
                        )
                got, order = {}, {}
                for _ in want:
                    result, error = came.get(timeout=60)
                    self.assertIsNone(error)
                    request = result.get_response().id
                    got[request] = total(result)
                    sequence, i = request.split("/")
                    self.assertEqual(order.get(sequence, 0), int(i), "the order of the responses")
                    order[sequence] = int(i) + 1
                self.assertEqual(want, got)
                client.stop_stream()

    def test_start_begins_anew(self):
        for send in self.ways():
            for model in "direct", "oldest":
                self.assertEqual(send(model, 500, 1, start=True), 1)
                self.assertEqual(send(model, 500, 2), 3)
                self.assertEqual(send(model, 500, 7, start=True), 7)
                self.assertEqual(send(model, 500, 1, end=True), 8)
                with self.assertRaisesRegex(InferenceServerException, NOT_STARTED):
                    send(model, 500, 1)

    def test_idle_sequences_end(self):
        """The slot of one that sends nothing more is the next one's, which waits for it."""
        for send in self.ways():
            self.assertEqual(send("brief", 600, 1, start=True), 1)
            self.assertEqual(send("brief", 601, 5, start=True, end=True), 5)
            with self.assertRaisesRegex(InferenceServerException, "sequence 600 .*" + NOT_STARTED):
                send("brief", 600, 1)

    def test_backlog_times_out(self):
        """While another sequence is at work in the only slot."""
        for send in self.ways():
            send("patient", 700, 1, start=True)
            with self.assertRaisesRegex(InferenceServerException, "timeout of the corresponding sequence has been expired"):
                send("patient", 701, 5, start=True, end=True, timeout=1000)
            self.assertEqual(send("patient", 700, 2, end=True), 3)
            self.assertEqual(send("patient", 701, 6, start=True, end=True), 6)

    def test_a_cancellation_ends_its_sequence(self):
        """Its place in the backlog is free."""
        send = self.ways()[1]
        self.assertEqual(send("patient", 800, 1, start=True), 1)
        canceled = self.cancel_one("patient", range(801, 900))
        self.assertEqual(send("patient", 800, 2, end=True), 3)
        self.assertEqual(send("patient", 900, 4, start=True, end=True), 4)
        with self.assertRaisesRegex(InferenceServerException, NOT_STARTED):
            send("patient", canceled, 1)

    def cancel_one(self, model, ids):
        """Begins sequences, each of which it cancels, until the server counts a cancellation, and returns that one: what is canceled at
        once may never have been sent, and without the count the server may not have heard of it yet."""
        failed = lambda: self.http.get_inference_statistics(model)["model_stats"][0]["inference_stats"]["fail"]["count"]
        before = failed()
        for of in ids:
            ended = queue.Queue()
            call = self.grpc.async_infer(model, inputs(grpc_client, 1), lambda result, error: ended.put(error), sequence_id=of, sequence_start=True)
            time.sleep(0.05)
            call.cancel()
            self.assertIn("CANCELLED", str(ended.get(timeout=60)))
            for _ in range(50):
                if failed() > before:
                    return of
                time.sleep(0.02)
        self.fail("no cancellation was counted")


if __name__ == "__main__":
    unittest.main()
