"""The real Triton clients and models of the backends that Triton's own tests are made of: identity, square, sequence and dyna_sequence.

HTTP_URL and GRPC_URL say where the server is.
"""

import os
import queue
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

HTTP, GRPC = os.environ["HTTP_URL"], os.environ["GRPC_URL"]
PARAMETERS = {"param0": "an example string parameter", "param1": 42, "param2": False}


def tensor(module, name, data, datatype):
    made = module.InferInput(name, list(data.shape), datatype)
    made.set_data_from_numpy(data)
    return made


class TestBackends(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.http = http_client.InferenceServerClient(HTTP)
        self.grpc = grpc_client.InferenceServerClient(GRPC)
        self.addCleanup(self.http.close)
        self.addCleanup(self.grpc.close)

    def ways(self):
        return (http_client, self.http), (grpc_client, self.grpc)

    def test_identity_of_each_datatype(self):
        for config, datatype, data in (
            ("BOOL", "BOOL", np.array([[True, False, True]])),
            ("UINT8", "UINT8", np.array([[0, 255]], np.uint8)),
            ("INT64", "INT64", np.array([[-(2**63), 7], [2**63 - 1, 0]], np.int64)),
            ("FP16", "FP16", np.array([[0.5, -2]], np.float16)),
            ("FP32", "FP32", np.array([[np.nan, np.inf, 1e-30]], np.float32)),
            ("STRING", "BYTES", np.array([[b"", "grün".encode(), b"\x00"]], np.object_)),
        ):
            for module, client in self.ways():
                with self.subTest(datatype=datatype, client=module.__name__):
                    result = client.infer("identity_" + config, [tensor(module, "INPUT0", data, datatype)])
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), data)

    def test_identity_gives_response_parameters(self):
        data = np.array([[1]], np.int64)
        response = self.grpc.infer("identity_INT64", [tensor(grpc_client, "INPUT0", data, "INT64")]).get_response()
        self.assertEqual({k: getattr(v, v.WhichOneof("parameter_choice")) for k, v in response.parameters.items()}, PARAMETERS)
        response = self.http.infer("identity_INT64", [tensor(http_client, "INPUT0", data, "INT64")]).get_response()
        self.assertEqual({k: response["parameters"][k] for k in PARAMETERS}, PARAMETERS)

    def test_identity_of_an_optional_input(self):
        number, pairs = np.array([[3], [4]], np.int32), np.arange(12, dtype=np.float64).reshape(2, 3, 2)
        for module, client in self.ways():
            first, second = tensor(module, "INPUT0", number, "INT32"), tensor(module, "INPUT1", pairs, "FP64")
            result = client.infer("optional", [first])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), number)
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), np.zeros((2, 1, 2)))
            result = client.infer("optional", [first, second], outputs=[module.InferRequestedOutput("OUTPUT1")])
            np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), pairs)
            self.assertIsNone(result.as_numpy("OUTPUT0"))

    def test_a_wrong_configuration_says_what_is_wrong(self):
        reasons = {m["name"]: m.get("reason", "") for m in self.http.get_model_repository_index()}
        self.assertIn("expected input and output indices to match: there is no input INPUT1", reasons["wrong"])

    def stream(self, model, numbers, shape=(1,)):
        """Returns what a stream gives for the requests of the numbers, by request."""
        came = queue.Queue()
        client = grpc_client.InferenceServerClient(GRPC)
        client.start_stream(lambda result, error: came.put((result, error)))
        for n in numbers:
            data = np.full(shape, n, np.int32)
            client.async_stream_infer(model, [tensor(grpc_client, "IN", data, "INT32")], request_id=str(n), enable_empty_final_response=True)
        got, left = {}, len(numbers)
        while left:
            result, error = came.get(timeout=60)
            if error is not None:
                got.setdefault("errors", []).append(error.message())
                left -= 1
                continue
            response = result.get_response()
            if response.outputs:
                got.setdefault(int(response.id), []).append(result.as_numpy("OUT").flatten().tolist())
            left -= response.parameters["triton_final_response"].bool_param
        client.stop_stream()
        client.close()
        self.assertTrue(came.empty())
        return got

    def test_square_gives_n_responses_of_n(self):
        self.assertEqual(self.stream("square", [4, 0, 2, 1]), {4: [[4]] * 4, 2: [[2]] * 2, 1: [[1]]})
        self.assertEqual(self.stream("square", [-1]), {"errors": ["IN is -1: it is the number of responses"]})

    def test_square_fails_as_it_is_told(self):
        self.assertEqual(self.stream("failing", [4], shape=(1, 1)), {4: [[4]] * 2, "errors": ["simulated failure"]})

    def accumulate(self, model, sequences, ends_with_id):
        """Runs sequences of six steps side by side, over both protocols in turn."""
        sums = {}
        for step in range(6):
            for k, sequence in enumerate(sequences):
                module, client = self.ways()[(step + k) % 2]
                data = np.array([[step, 10 * k]], np.int32)
                result = client.infer(
                    model, [tensor(module, "INPUT", data, "INT32")], sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 5
                )
                sums[sequence] = sums.get(sequence, 0) + step + 10 * k
                want = sums[sequence] + (int(sequence) if ends_with_id and step == 5 else 0)
                np.testing.assert_array_equal(result.as_numpy("OUTPUT"), [[want, want]])

    def test_sequence_adds_up(self):
        self.accumulate("sequence", [11, 12], False)

    def test_dyna_sequence_adds_up_and_adds_the_id(self):
        self.accumulate("dyna_sequence", list(range(101, 107)), True)
        self.accumulate("string_ids", ["101", "102", "103"], True)

    def test_dyna_sequence_adds_numbers_alone(self):
        for module, client in self.ways():
            data = tensor(module, "INPUT", np.array([[1]], np.int32), "INT32")
            with self.assertRaisesRegex(InferenceServerException, "the correlation ID is .name.: the backend dyna_sequence adds it to the sum"):
                client.infer("string_ids", [data], sequence_id="name", sequence_start=True, sequence_end=True)


if __name__ == "__main__":
    unittest.main()
