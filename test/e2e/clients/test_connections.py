"""The real Triton clients and what a server's flags say about connections: TLS, restricted APIs, sockets.

GRPC_URL and HTTP_URL say where the server is, CERTIFICATES is a directory of PEM files, and MUTUAL is "mutual" where
the server wants the client's certificate.
"""

import os
import pathlib
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

GRPC_URL = os.environ["GRPC_URL"]


def add(module, client, **options):
    """Runs the model simple and returns its answer."""
    values = np.arange(16, dtype=np.int32).reshape(1, 16)
    inputs = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor in inputs:
        tensor.set_data_from_numpy(values)
    result = client.infer("simple", inputs, **options)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values + values)
    return result


class TLS(unittest.TestCase):
    """A client reaches the server by certificates alone."""

    def connect(self, own=None, root="root"):
        directory = pathlib.Path(os.environ["CERTIFICATES"])
        file = lambda name: str(directory / name)
        return grpc_client.InferenceServerClient(
            GRPC_URL, ssl=True, root_certificates=file(f"{root}.pem"),
            certificate_chain=own and file(f"{own}.pem"), private_key=own and file(f"{own}.key"),
        )

    def test_the_client_trusts_the_server(self):
        with self.connect(own="client") as client:
            add(grpc_client, client)

    def test_a_server_of_another_root_is_refused(self):
        with self.connect(own="client", root="stranger") as client, self.assertRaisesRegex(InferenceServerException, "UNAVAILABLE"):
            client.is_server_live()

    def test_clients_without_a_certificate(self):
        for own in (None, "stranger"):
            with self.connect(own) as client:
                if os.environ["MUTUAL"] != "mutual":
                    add(grpc_client, client)
                    continue
                with self.assertRaisesRegex(InferenceServerException, "UNAVAILABLE"):
                    client.is_server_live()

    def test_plain_text_is_refused(self):
        with grpc_client.InferenceServerClient(GRPC_URL) as client, self.assertRaisesRegex(InferenceServerException, "UNAVAILABLE"):
            client.is_server_live()


class Connections(unittest.TestCase):
    """Flags without TLS."""

    def test_restricted_apis(self):
        with grpc_client.InferenceServerClient(GRPC_URL) as client:
            add(grpc_client, client)
            with self.assertRaisesRegex(InferenceServerException, "UNAVAILABLE.*expecting header 'triton-grpc-protocol-key'"):
                client.get_model_repository_index()
            client.get_model_repository_index(headers={"triton-grpc-protocol-key": "secret"})
            client.get_inference_statistics()
        with http_client.InferenceServerClient(os.environ["HTTP_URL"]) as client:
            add(http_client, client)
            for call in (client.get_model_repository_index, client.get_inference_statistics):
                with self.assertRaisesRegex(InferenceServerException, "403.*expecting header 'key'"):
                    call()
                call(headers={"key": "secret"})

    def test_streams(self):
        answers = []
        with grpc_client.InferenceServerClient(GRPC_URL) as client:
            client.start_stream(lambda result, error: answers.append((result, error)))
            tensor = grpc_client.InferInput("INPUT0", [1, 16], "INT32")
            tensor.set_data_from_numpy(np.zeros((1, 16), np.int32))
            other = grpc_client.InferInput("INPUT1", [1, 16], "INT32")
            other.set_data_from_numpy(np.ones((1, 16), np.int32))
            client.async_stream_infer("simple", [tensor, other])
            client.stop_stream()
        self.assertEqual([error for _, error in answers], [None])


if __name__ == "__main__":
    unittest.main()
