"""What the real Triton clients can do beside requests: BF16, plugins, gevent.

HTTP_URL and GRPC_URL say where the server is. Its models numbers and bf16 give
their inputs back, and said its request's parameters; the API model-repository
is restricted.
"""

import asyncio
import json
import os
import subprocess
import sys
import unittest

import ml_dtypes
import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.grpc.aio.auth
import tritonclient.grpc.auth
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
import tritonclient.http.aio.auth
import tritonclient.http.auth
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

HTTP_URL = os.environ["HTTP_URL"]
GRPC_URL = os.environ["GRPC_URL"]


def call(module, url, use):
    """What use(client) gives, for clients that wait and for those of asyncio."""

    async def awaited():
        async with module.InferenceServerClient(url) as client:
            return await use(client)

    if module in (http_aio, grpc_aio):
        return asyncio.run(awaited())
    with module.InferenceServerClient(url) as client:
        return use(client)


CLIENTS = ((http_client, HTTP_URL), (http_aio, HTTP_URL), (grpc_client, GRPC_URL), (grpc_aio, GRPC_URL))


class BF16(unittest.TestCase):
    def test_numbers_come_back(self):
        values = np.array([[0.0, -1.5, 3.140625, 65536.0, float("inf"), 2.0**-130]])
        # Older clients have FP32 in the place of BF16.
        data = values.astype(triton_to_np_dtype("BF16"))
        for module, url in CLIENTS:
            with self.subTest(module.__name__):
                tensor = module.InferInput("INPUT0", list(data.shape), "BF16")
                tensor.set_data_from_numpy(data)
                got = call(module, url, lambda client: client.infer("bf16", [tensor])).as_numpy("OUTPUT0")
                np.testing.assert_array_equal(got.astype(np.float64), data.astype(np.float64))

    def test_bytes_are_those_of_ml_dtypes(self):
        data = np.array([[1.0, -2.5]], ml_dtypes.bfloat16)
        tensor = http_client.InferInput("INPUT0", [1, 2], "BF16")
        tensor._parameters["binary_data_size"], tensor._raw_data = data.nbytes, data.tobytes()
        with http_client.InferenceServerClient(HTTP_URL) as client:
            got = client.infer("bf16", [tensor]).as_numpy("OUTPUT0")
        self.assertEqual(got.astype(np.float32).tolist(), [[1.0, -2.5]])

    def test_no_json(self):
        tensor = http_client.InferInput("INPUT0", [1, 1], "BF16")
        tensor._data = [1.0]
        with http_client.InferenceServerClient(HTTP_URL) as client, self.assertRaisesRegex(InferenceServerException, "BF16 data via JSON is not supported"):
            client.infer("bf16", [tensor])


class Header(tritonclient.http.auth.BasicAuth.__mro__[1]):
    """A plugin that adds a header to each request."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def __call__(self, request):
        request.headers[self.name] = self.value


class Plugins(unittest.TestCase):
    def index(self, module, url, plugin):
        async def awaited():
            async with module.InferenceServerClient(url) as client:
                if plugin:
                    client.register_plugin(plugin)
                return await client.get_model_repository_index()

        if module in (http_aio, grpc_aio):
            return asyncio.run(awaited())
        with module.InferenceServerClient(url) as client:
            if plugin:
                client.register_plugin(plugin)
            return client.get_model_repository_index()

    def test_basic_auth_opens_what_is_restricted(self):
        for module, auth in ((http_client, tritonclient.http.auth), (http_aio, tritonclient.http.aio.auth)):
            with self.subTest(module.__name__):
                self.assertTrue(self.index(module, HTTP_URL, auth.BasicAuth("user", "pass")))
                for plugin in (None, auth.BasicAuth("user", "other")):
                    with self.assertRaisesRegex(InferenceServerException, "This API is restricted, expecting header 'authorization'"):
                        self.index(module, HTTP_URL, plugin)

    def test_a_header_opens_what_is_restricted(self):
        for module in (grpc_client, grpc_aio):
            with self.subTest(module.__name__):
                self.assertTrue(self.index(module, GRPC_URL, Header("triton-grpc-protocol-key", "secret")).models)
                for plugin in (None, Header("triton-grpc-protocol-key", "other"), tritonclient.grpc.auth.BasicAuth("user", "pass")):
                    with self.assertRaisesRegex(InferenceServerException, "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"):
                        self.index(module, GRPC_URL, plugin)

    def test_credentials_do_not_reach_models(self):
        for module, url, auth in ((http_client, HTTP_URL, tritonclient.http.auth), (grpc_client, GRPC_URL, tritonclient.grpc.auth)):
            with self.subTest(module.__name__), module.InferenceServerClient(url) as client:
                client.register_plugin(auth.BasicAuth("user", "pass"))
                text = module.InferInput("TEXT", [1], "BYTES")
                text.set_data_from_numpy(np.array([b"a"], np.object_))
                result = client.infer("said", [text], headers={"x-route": "a"})
                self.assertEqual(json.loads(result.as_numpy("OUT")[0]), {"x-route": "a"})


GREENLETS = """
from gevent import monkey

monkey.patch_all()
import os

import gevent
import gevent.pool
{more}
import numpy as np
import tritonclient.{protocol} as module

client = module.InferenceServerClient("{url}"{options})


def infer(i):
    tensor = module.InferInput("INPUT0", [1, 4], "INT32")
    tensor.set_data_from_numpy(np.full((1, 4), i, np.int32))
    return client.infer("numbers", [tensor]).as_numpy("OUTPUT0")[0].tolist() == [i] * 4


print(sum(gevent.pool.Pool(16).map(infer, range(64))), flush=True)
os._exit(0)  # with gRPC's support of gevent an interpreter may hang in its own end
"""


class Greenlets(unittest.TestCase):
    def run_patched(self, **parts):
        done = subprocess.run([sys.executable, "-c", GREENLETS.format(**parts)], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "64"), done.stderr)

    def test_http(self):
        self.run_patched(protocol="http", url=HTTP_URL, options=", concurrency=16", more="")

    def test_grpc(self):
        self.run_patched(protocol="grpc", url=GRPC_URL, options="", more="import grpc.experimental.gevent\n\ngrpc.experimental.gevent.init_gevent()")


if __name__ == "__main__":
    unittest.main()
