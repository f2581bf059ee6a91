"""The real Triton clients and Python models.

HTTP_URL and GRPC_URL say where the server is.
"""

import concurrent.futures
import os
import queue
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

HTTP, GRPC = os.environ["HTTP_URL"], os.environ["GRPC_URL"]


def tensor(module, name, data, datatype):
    made = module.InferInput(name, list(data.shape), datatype)
    made.set_data_from_numpy(data)
    return made


class Clients(unittest.TestCase):
    def setUp(self):
        self.http = http_client.InferenceServerClient(HTTP)
        self.grpc = grpc_client.InferenceServerClient(GRPC)
        self.addCleanup(self.http.close)
        self.addCleanup(self.grpc.close)

    def ways(self):
        return (http_client, self.http), (grpc_client, self.grpc)

    def tell(self, model, how):
        """Yields what a model answers over each protocol when it is told what to do: numbers, or the exception."""
        for module, client in self.ways():
            try:
                result = client.infer(model, [tensor(module, "HOW", np.array([how.encode()], np.object_), "BYTES")])
                yield module, result.as_numpy("OUT").tolist()
            except InferenceServerException as e:
                yield module, e

    def fails(self, model, how, http, grpc, text):
        for module, error in self.tell(model, how):
            with self.subTest(how=how, client=module.__name__):
                self.assertIsInstance(error, InferenceServerException)
                self.assertEqual(error.status(), http if module is http_client else "StatusCode." + grpc)
                self.assertRegex(error.message(), text)


class Models(Clients):
    def add_sub(self, module, client, first, second, **more):
        inputs = [tensor(module, "INPUT0", first, "FP32"), tensor(module, "INPUT1", second, "FP32")]
        result = client.infer("add_sub", inputs, **more)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), first + second)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), first - second)
        return result

    def test_tensors_of_any_size_come_as_they_are(self):
        for columns in (1, 1023, 1024, 1 << 18, (1 << 18) + 1):
            first = np.arange(2 * columns, dtype=np.float32).reshape(2, columns)
            for module, client in self.ways():
                with self.subTest(columns=columns, client=module.__name__):
                    self.add_sub(module, client, first, first[::-1].copy())

    def test_many_requests_at_once_each_get_their_own_answer(self):
        def ask(n):
            first, second = np.full((1 + n % 3, 5), n, np.float32), np.ones((1 + n % 3, 5), np.float32)
            if n % 2:
                self.add_sub(grpc_client, self.grpc, first, second)
                return
            with http_client.InferenceServerClient(HTTP) as client:  # it belongs to one thread
                self.add_sub(http_client, client, first, second)

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, range(400)))

    def test_texts_come_as_they_are(self):
        for texts in ([], [b"", "grün".encode(), b"\x00"], [b"x" * 100_000, b"y"]):
            data = np.array(texts, np.object_)
            for module, client in self.ways():
                with self.subTest(texts=len(texts), client=module.__name__):
                    result = client.infer("upper", [tensor(module, "IN", data, "BYTES")])
                    self.assertEqual(result.as_numpy("OUT").tolist(), [text.upper() for text in texts])

    def test_parameters_go_both_ways(self):
        data = np.zeros((1, 1), np.float32)
        sent = {"word": "go", "count": 42, "yes": True}
        want = {"id": "r7", **{"got_" + k: v for k, v in sent.items()}}
        for module, client in self.ways():
            with self.subTest(client=module.__name__):
                response = self.add_sub(module, client, data, data, request_id="r7", parameters=sent).get_response()
                got = response["parameters"] if module is http_client else response.parameters
                for key, value in want.items():
                    there = got[key]
                    self.assertEqual(there if module is http_client else getattr(there, there.WhichOneof("parameter_choice")), value)

    def test_a_decoupled_model_gives_as_many_responses_as_it_will(self):
        came = queue.Queue()
        asked = {"none": [], "one": [1], "many": list(range(100))}
        self.grpc.start_stream(lambda result, error: came.put((result, error)))
        for name, numbers in asked.items():
            data = tensor(grpc_client, "IN", np.array(numbers, np.int32), "INT32")
            self.grpc.async_stream_infer("repeat", [data], request_id=name, enable_empty_final_response=True)
        got, left = {name: [] for name in asked}, len(asked)
        while left:
            result, error = came.get()
            self.assertIsNone(error)
            response = result.get_response()
            if response.outputs:
                got[response.id] += result.as_numpy("OUT").tolist()
            left -= response.parameters["triton_final_response"].bool_param
        self.grpc.stop_stream()
        self.assertEqual(got, asked)
        self.assertTrue(came.empty())

    def test_requests_run_again_as_often_as_the_model_says(self):
        def ask(n):
            data = np.array([[1 + n % 7]], np.int32)
            result = self.grpc.infer("again", [tensor(grpc_client, "IN", data, "INT32")])
            np.testing.assert_array_equal(result.as_numpy("OUT"), data)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(70)))

    def test_errors_have_the_status_of_their_code(self):
        for how, http, grpc in (
            ("UNKNOWN", "400", "UNKNOWN"),
            ("INTERNAL", "500", "INTERNAL"),
            ("NOT_FOUND", "404", "NOT_FOUND"),
            ("INVALID_ARG", "400", "INVALID_ARGUMENT"),
            ("UNAVAILABLE", "503", "UNAVAILABLE"),
            ("UNSUPPORTED", "501", "UNIMPLEMENTED"),
            ("ALREADY_EXISTS", "400", "ALREADY_EXISTS"),
            ("CANCELLED", "400", "CANCELLED"),
        ):
            self.fails("fails", how, http, grpc, "told to fail")

    def test_an_exception_is_an_error_with_its_text(self):
        self.fails("fails", "raise", "500", "INTERNAL", "ValueError: told to raise")


class Calls(Clients):
    def test_each_way_to_call_gives_what_the_other_model_has_answered(self):
        for how, want in (
            ("one", [7]),
            ("three", [11, 12, 13]),
            ("several", [5, 6, 7]),
            ("several_at_once", [8, 9]),
            ("asks nested three", [11, 12, 13]),
        ):
            for module, got in self.tell("calls", how):
                with self.subTest(how=how, client=module.__name__):
                    self.assertEqual(got, want)

    def test_a_call_that_would_wait_for_itself_is_refused(self):
        for how in ("asks calls one", "asks nested asks calls one"):
            self.fails("calls", how, "503", "UNAVAILABLE", "every instance of model 'calls'")

    def test_the_error_of_a_call_keeps_its_code(self):
        self.fails("calls", "asks fails INVALID_ARG", "400", "INVALID_ARGUMENT", "told to fail")
        self.fails("calls", "asks nested asks fails NOT_FOUND", "404", "NOT_FOUND", "told to fail")
        self.fails("calls", "asks fails UNKNOWN", "400", "UNKNOWN", "told to fail")
        self.fails("calls", "asks nobody", "404", "NOT_FOUND", "Model 'nobody' is not ready")


if __name__ == "__main__":
    unittest.main()
