"""The real Triton client's shared memory against a running server, over HTTP, gRPC and asyncio.

HTTP_URL and GRPC_URL say where the server is, which runs on this host with
--allow-client-shm. Its models give their inputs back: numbers has two of type
INT32, words one of type BYTES, chained is an ensemble of numbers, known keeps
its responses.
"""

import asyncio
import base64
import os
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, serialized_byte_size

HTTP_URL = os.environ["HTTP_URL"]
GRPC_URL = os.environ["GRPC_URL"]

SIZE = 64  # bytes of an input of the model numbers


class Awaited:
    """A client of asyncio whose calls wait for their results."""

    def __init__(self, module, url):
        self.loop = asyncio.new_event_loop()

        async def connect():
            return module.InferenceServerClient(url)

        self.client = self.loop.run_until_complete(connect())

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **kwargs: self.loop.run_until_complete(method(*args, **kwargs))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


class SharedMemory:
    """Tests of every protocol."""

    module = None

    def connect(self):
        raise NotImplementedError

    def setUp(self):
        self.client = self.connect()
        self.addCleanup(self.client.close)
        self.addCleanup(self.client.unregister_system_shared_memory)
        self.regions = {}

    def key(self, name):
        return f"/shm-test-{os.getpid()}-{name}"

    def create(self, name, size=SIZE, arrays=()):
        region = shm.create_shared_memory_region(name, self.key(name), size)
        self.regions[name] = region
        self.addCleanup(shm.destroy_shared_memory_region, region)
        if arrays:
            shm.set_shared_memory_region(region, arrays)
        return region

    def register(self, name, size=SIZE, arrays=(), offset=0):
        self.create(name, size, arrays)
        self.client.register_system_shared_memory(name, self.key(name), size - offset, offset=offset)

    def status(self, name=""):
        status = self.client.get_system_shared_memory_status(name)
        if isinstance(status, list):
            return {region["name"]: (region["key"], region["offset"], region["byte_size"]) for region in status}
        return {name: (region.key, region.offset, region.byte_size) for name, region in status.regions.items()}

    def refused(self, text):
        test = self

        class Refused:
            def __enter__(self):
                self.caught = test.assertRaises(InferenceServerException)
                self.entered = self.caught.__enter__()

            def __exit__(self, *error):
                ended = self.caught.__exit__(*error)
                test.assertIn(text, self.entered.exception.message())
                return ended

        return Refused()

    def four(self):
        """The regions a and b with the inputs, x and y for the outputs."""
        self.first, self.second = np.arange(16, dtype=np.int32), np.full(16, 3, np.int32)
        self.register("a", arrays=[self.first])
        self.register("b", arrays=[self.second])
        self.register("x")
        self.register("y")

    def inputs(self, a="a", b="b", size=SIZE, offset=0):
        inputs = [self.module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for tensor, region in zip(inputs, (a, b)):
            if isinstance(region, str):
                tensor.set_shared_memory(region, size, offset=offset)
            else:
                tensor.set_data_from_numpy(region.reshape(1, 16))
        return inputs

    def outputs(self, x="x", y="y", size=SIZE, offset=0):
        outputs = [self.module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
        for tensor, region in zip(outputs, (x, y)):
            if region:
                tensor.set_shared_memory(region, size, offset=offset)
        return outputs

    def contents(self, name, datatype=np.int32, shape=(16,), offset=0):
        return shm.get_contents_as_numpy(self.regions[name], datatype, list(shape), offset=offset)

    def clear(self, *names):
        for name in names:
            shm.set_shared_memory_region(self.regions[name], [np.full(16, -1, np.int32)])

    def check(self, model="numbers"):
        self.client.infer(model, self.inputs(), outputs=self.outputs())
        np.testing.assert_array_equal(self.contents("x"), self.first)
        np.testing.assert_array_equal(self.contents("y"), self.second)

    def test_registration(self):
        self.assertEqual(self.status(), {})
        self.four()
        key = self.key("a")
        self.assertEqual(self.status("a"), {"a": (key, 0, SIZE)})
        self.assertEqual(set(self.status()), {"a", "b", "x", "y"})
        with self.refused("shared memory region 'a' already in manager"):
            self.client.register_system_shared_memory("a", key, SIZE)
        with self.refused("Unable to find system shared memory region: 'c'"):
            self.status("c")
        self.client.unregister_system_shared_memory("c")
        self.client.unregister_system_shared_memory("a")
        self.assertEqual(set(self.status()), {"b", "x", "y"})
        self.client.register_system_shared_memory("a", key, SIZE)
        self.client.unregister_system_shared_memory()
        self.assertEqual(self.status(), {})

    def test_registration_beyond_the_object(self):
        self.create("a")
        for size, offset in ((SIZE + 1, 0), (SIZE, 1), (1, SIZE), (0, SIZE + 1)):
            with self.subTest(size=size, offset=offset), self.refused("failed to register shared memory region 'a': invalid args"):
                self.client.register_system_shared_memory("a", self.key("a"), size, offset=offset)
        with self.refused("Unable to open shared memory region: '/shm-test-none'"):
            self.client.register_system_shared_memory("a", "/shm-test-none", SIZE)
        reserved = "triton_python_backend_shm_region_"
        with self.refused(f"cannot register shared memory region 'a' with key '{reserved}x' as the key contains the reserved prefix '{reserved}'"):
            self.client.register_system_shared_memory("a", reserved + "x", SIZE)

    def test_infer(self):
        self.four()
        for model in ("numbers", "chained", "known", "known"):
            self.clear("x", "y")
            with self.subTest(model):
                self.check(model)

    def test_inputs_and_outputs_in_the_message(self):
        self.four()
        for a in ("a", self.first):
            for b in ("b", self.second):
                for x in ("x", None):
                    with self.subTest(a=a, b=b, x=x):
                        self.clear("x", "y")
                        result = self.client.infer("numbers", self.inputs(a, b), outputs=self.outputs(x, None))
                        np.testing.assert_array_equal(result.as_numpy("OUTPUT1")[0], self.second)
                        np.testing.assert_array_equal(self.contents("x") if x else result.as_numpy("OUTPUT0")[0], self.first)

    def test_offsets(self):
        first, second = np.arange(16, dtype=np.int32), np.full(16, 7, np.int32)
        page = 4096
        self.register("all", 2 * page, [first, second])
        self.create("late", 2 * page)
        shm.set_shared_memory_region(self.regions["late"], [second], offset=page)
        self.client.register_system_shared_memory("late", self.key("late"), page, offset=page)
        inputs = self.inputs("all", "late")
        inputs[0].set_shared_memory("all", SIZE, offset=SIZE)
        outputs = self.outputs("all", "late", SIZE)
        outputs[0].set_shared_memory("all", SIZE, offset=3 * SIZE)
        outputs[1].set_shared_memory("late", SIZE, offset=SIZE)
        self.client.infer("numbers", inputs, outputs=outputs)
        np.testing.assert_array_equal(self.contents("all", offset=3 * SIZE), second)
        np.testing.assert_array_equal(self.contents("late", offset=page + SIZE), second)

    def test_words(self):
        words = np.array(["", "word", "größer"], dtype=np.object_)
        serialized = serialize_byte_tensor(words)
        self.create("words", 4096, [serialized])
        self.client.register_system_shared_memory("words", self.key("words"), 4096)
        size = serialized_byte_size(serialized)
        tensor = self.module.InferInput("INPUT0", [1, 3], "BYTES")
        tensor.set_shared_memory("words", size)
        result = self.client.infer("words", [tensor])
        self.assertEqual(result.as_numpy("OUTPUT0")[0].tolist(), [word.encode() for word in words])
        output = self.module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("words", 1024, offset=1024)
        self.client.infer("words", [tensor], outputs=[output])
        self.assertEqual(self.contents("words", np.object_, (3,), 1024).tolist(), [word.encode() for word in words])

    def test_refusals(self):
        self.four()
        for name, text, inputs, outputs in (
            ("an unknown input", "Unable to find shared memory region: 'c'", self.inputs("c"), self.outputs()),
            ("an unknown output", "Unable to find shared memory region: 'c'", self.inputs(), self.outputs("c")),
            ("an input beyond", "Invalid offset for shared memory region: 'a'", self.inputs(offset=SIZE), self.outputs()),
            ("an output beyond", "Invalid offset for shared memory region: 'x'", self.inputs(), self.outputs(offset=SIZE)),
            ("an input's end beyond", "Invalid offset + byte size for shared memory region: 'a'", self.inputs(offset=SIZE - 4), self.outputs()),
            ("an output's end beyond", "Invalid offset + byte size for shared memory region: 'x'", self.inputs(), self.outputs(offset=SIZE - 4)),
            ("a small output", "shared memory size specified with the request for output 'OUTPUT0' (60 bytes) should be at least 64 bytes", self.inputs(), self.outputs(size=60)),
            ("a small input", "input byte size mismatch for input 'INPUT1' for model 'numbers'. Expected 64, got 32", self.inputs(size=32), self.outputs()),
        ):
            with self.subTest(name), self.refused(text):
                self.client.infer("numbers", inputs, outputs=outputs)
        self.client.unregister_system_shared_memory("y")
        with self.refused("Unable to find shared memory region: 'y'"):
            self.client.infer("numbers", self.inputs(), outputs=self.outputs())

    def test_a_shape_that_is_wrong(self):
        self.four()
        inputs = self.inputs()
        inputs[0].set_shape([1, 8])
        with self.refused("unexpected shape for input 'INPUT0' for model 'numbers'"):
            self.client.infer("numbers", inputs, outputs=self.outputs())

    def test_an_object_that_shrinks(self):
        self.four()
        os.truncate("/dev/shm" + self.key("b"), SIZE - 1)
        with self.refused("shared memory region 'b' has changed"):
            self.client.infer("numbers", self.inputs(), outputs=self.outputs())
        os.truncate("/dev/shm" + self.key("b"), SIZE)
        os.truncate("/dev/shm" + self.key("y"), SIZE - 1)
        with self.refused("shared memory region 'y' has changed"):
            self.client.infer("numbers", self.inputs(), outputs=self.outputs())
        os.truncate("/dev/shm" + self.key("y"), SIZE)
        shm.set_shared_memory_region(self.regions["b"], [self.second])
        self.check()

    def test_cuda(self):
        status = self.client.get_cuda_shared_memory_status()
        self.assertFalse(getattr(status, "regions", status))
        self.client.unregister_cuda_shared_memory()
        with self.refused("Unable to find cuda shared memory region: 'c'"):
            self.client.get_cuda_shared_memory_status("c")
        with self.refused("GPUs not supported"):
            self.client.register_cuda_shared_memory("c", base64.b64encode(bytes(64)), 0, SIZE)

    def test_extensions(self):
        metadata = self.client.get_server_metadata()
        extensions = set(getattr(metadata, "extensions", None) or metadata["extensions"])
        self.assertLessEqual({"system_shared_memory", "cuda_shared_memory"}, extensions)


class OverHTTP(SharedMemory, unittest.TestCase):
    module = http_client

    def connect(self):
        return http_client.InferenceServerClient(HTTP_URL)


class OverHTTPAsync(OverHTTP):
    def connect(self):
        return Awaited(http_aio, HTTP_URL)


class OverGRPC(SharedMemory, unittest.TestCase):
    module = grpc_client

    def connect(self):
        return grpc_client.InferenceServerClient(GRPC_URL)

    def test_streams(self):
        self.four()
        answers = []
        self.client.start_stream(lambda result, error: answers.append((result, error)))
        for _ in range(3):
            self.client.async_stream_infer("numbers", self.inputs(), outputs=self.outputs())
        self.client.async_stream_infer("numbers", self.inputs("c"), outputs=self.outputs())
        self.client.stop_stream()
        self.assertEqual([error is None for _, error in answers], [True, True, True, False])
        self.assertIn("Unable to find shared memory region: 'c'", answers[3][1].message())
        np.testing.assert_array_equal(self.contents("x"), self.first)


class OverGRPCAsync(OverGRPC):
    def connect(self):
        return Awaited(grpc_aio, GRPC_URL)

    test_streams = None


if __name__ == "__main__":
    unittest.main()
