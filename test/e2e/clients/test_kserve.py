"""KServe's SDK against a running server: its clients of the Open Inference Protocol over REST and gRPC.

HTTP_URL and GRPC_URL say where the server is. Its model numbers gives its two
inputs back, and words its texts.
"""

import os
import unittest

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

BASE = "http://" + os.environ["HTTP_URL"]


def numbers(binary, id="mine", size=16):
    inputs = []
    for i, name in enumerate(("INPUT0", "INPUT1")):
        tensor = InferInput(name, [1, size], "INT32")
        tensor.set_data_from_numpy(np.arange(size, dtype=np.int32)[None] + i, binary_data=binary)
        inputs.append(tensor)
    return InferRequest("numbers", inputs, request_id=id)


def words(binary):
    tensor = InferInput("INPUT0", [1, 2], "BYTES")
    tensor.set_data_from_numpy(np.array([["word", "größer"]], np.object_), binary_data=binary)
    return InferRequest("words", [tensor])


class Clients:
    """Tests of both protocols."""

    def check(self, response):
        self.assertEqual((response.model_name, response.id), ("numbers", "mine"))
        found = {output.name: output.as_numpy() for output in response.outputs}
        for i, name in enumerate(("OUTPUT0", "OUTPUT1")):
            np.testing.assert_array_equal(found[name], np.arange(16, dtype=np.int32)[None] + i)


class REST(Clients, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
        self.addAsyncCleanup(self.client.close)

    async def test_health(self):
        asks = {"Accept": "application/json"}  # the SDK reads a body, which Triton does not give
        self.assertTrue(await self.client.is_server_live(BASE, headers=asks))
        self.assertTrue(await self.client.is_server_ready(BASE, headers=asks))
        self.assertTrue(await self.client.is_model_ready(BASE, "numbers"))
        self.assertFalse(await self.client.is_model_ready(BASE, "nonesuch"))

    async def test_infer(self):
        for binary in (True, False):
            with self.subTest(binary=binary):
                self.check(await self.client.infer(BASE, numbers(binary), model_name="numbers"))

    async def test_words(self):
        for binary in (True, False):
            with self.subTest(binary=binary):
                response = await self.client.infer(BASE, words(binary), model_name="words")
                got = [text.decode() if isinstance(text, bytes) else text for text in response.outputs[0].as_numpy().flatten()]
                self.assertEqual(got, ["word", "größer"])

    async def test_errors(self):
        with self.assertRaisesRegex(httpx.HTTPStatusError, "Request for unknown model: 'nonesuch' is not found.*404"):
            await self.client.infer(BASE, numbers(True), model_name="nonesuch")
        with self.assertRaisesRegex(httpx.HTTPStatusError, "unexpected shape for input 'INPUT[01]'.*400"):
            await self.client.infer(BASE, numbers(True, size=15), model_name="numbers")


class GRPC(Clients, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = InferenceGRPCClient(os.environ["GRPC_URL"])
        self.addAsyncCleanup(self.client.close)

    async def test_health(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready("numbers"))
        self.assertFalse(await self.client.is_model_ready("nonesuch"))

    async def test_infer(self):
        for binary in (True, False):
            with self.subTest(binary=binary):
                self.check(await self.client.infer(numbers(binary)))

    async def test_words(self):
        for binary in (True, False):
            with self.subTest(binary=binary):
                response = await self.client.infer(words(binary))
                self.assertEqual([text.decode() if isinstance(text, bytes) else text for text in response.outputs[0].as_numpy().flatten()], ["word", "größer"])

    async def test_errors(self):
        request = numbers(True)
        request.model_name = "nonesuch"
        with self.assertRaises(grpc.RpcError) as caught:
            await self.client.infer(request)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        self.assertIn("Request for unknown model: 'nonesuch' is not found", caught.exception.details())


if __name__ == "__main__":
    unittest.main()
