"""The real Triton client's CUDA shared memory against a running server, over HTTP and gRPC.

HTTP_URL and GRPC_URL say where the server is, which runs on this host with --allow-client-shm. Its models gpu, on GPU 0,
and cpu give their input back. WORKERS are the processes that keep those of its workers, if any, and STATISTICS is the file in which the
emulated GPU of these tells how much memory of others is mapped. NEREID_CUDA_LIBRARIES has the emulated CUDA, of two
devices, by which this process is a client with memory on a GPU.
"""

import base64
import glob
import os
import signal
import threading
import time
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import tritonclient.utils.cuda_shared_memory as cuda
import tritonclient.utils.shared_memory as system
from tritonclient.utils import InferenceServerException

HTTP_URL = os.environ["HTTP_URL"]
GRPC_URL = os.environ["GRPC_URL"]
PATIENCE = 120  # seconds for what must happen at last; nothing is measured


def mapped():
    """How many bytes of other processes' memory the workers have mapped."""
    with open(os.environ["STATISTICS"], encoding="utf-8") as file:
        return dict(line.split() for line in file).get("imported_bytes", "0")


def worker(device):
    """The process of the worker of a device; None while there is none."""
    for parent in os.environ["WORKERS"].split():
        for path in glob.glob(f"/proc/{parent}/task/*/children"):
            with open(path, encoding="utf-8") as file:
                children = file.read().split()
            for pid in children:
                try:
                    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                        if f"--device={device}" in file.read().split("\0"):
                            return int(pid)
                except FileNotFoundError:
                    pass
    return None


class CUDASharedMemory:
    """Tests of every protocol."""

    module = None

    def connect(self):
        raise NotImplementedError

    def setUp(self):
        self.client = self.connect()
        self.addCleanup(self.client.close)
        self.addCleanup(self.client.unregister_cuda_shared_memory)
        self.addCleanup(self.client.unregister_system_shared_memory)
        self.regions = {}
        until = time.monotonic() + PATIENCE
        while not self.client.is_model_ready("gpu"):  # the worker may have started again
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)

    def create(self, name, array=None, size=64, device=0):
        self.regions[name] = cuda.create_shared_memory_region(name, array.nbytes if array is not None else size, device)
        self.addCleanup(self.free, name)
        if array is not None:
            cuda.set_shared_memory_region(self.regions[name], [array])
        return cuda.get_raw_handle(self.regions[name])

    def free(self, name):
        """Frees a region's memory, which goes with the last reference to it."""
        if name in self.regions:
            cuda.destroy_shared_memory_region(self.regions.pop(name))

    def register(self, name, array=None, size=64):
        handle = self.create(name, array, size)
        self.client.register_cuda_shared_memory(name, handle, 0, array.nbytes if array is not None else size)
        return handle

    def contents(self, name, shape):
        return cuda.get_contents_as_numpy(self.regions[name], np.float32, shape)

    def status(self, name=""):
        status = self.client.get_cuda_shared_memory_status(name)
        if isinstance(status, list):
            return {region["name"]: (region["device_id"], region["byte_size"]) for region in status}
        return {name: (region.device_id, region.byte_size) for name, region in status.regions.items()}

    def infer(self, model, shape, given, wanted):
        tensor = self.module.InferInput("INPUT0", shape, "FP32")
        tensor.set_shared_memory(*given)
        output = self.module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory(*wanted)
        return self.client.infer(model, [tensor], outputs=[output])

    def refused(self, text, call, *args, **kwargs):
        with self.assertRaises(InferenceServerException) as caught:
            call(*args, **kwargs)
        self.assertIn(text, caught.exception.message())
        return caught.exception.message()

    def check(self, model="gpu", rows=4):
        """Sends numbers from one region to another."""
        numbers = np.arange(16 * rows, dtype=np.float32).reshape(rows, 16) + rows
        self.register("in", numbers)
        self.register("out", size=numbers.nbytes)
        self.infer(model, numbers.shape, ("in", numbers.nbytes), ("out", numbers.nbytes))
        np.testing.assert_array_equal(self.contents("out", numbers.shape), numbers)
        return numbers

    def test_registration(self):
        self.assertEqual(self.status(), {})
        first = self.register("a")
        self.assertEqual(self.status("a"), {"a": (0, 64)})
        self.register("b", size=4096)
        self.assertEqual(self.status(), {"a": (0, 64), "b": (0, 4096)})
        self.refused("shared memory region 'a' already in manager", self.client.register_cuda_shared_memory, "a", first, 0, 64)
        self.refused("Unable to find cuda shared memory region: 'c'", self.status, "c")
        self.refused("The region named 'a' is registered as CUDA shared memory, not system shared memory", self.client.get_system_shared_memory_status, "a")
        self.client.unregister_system_shared_memory()
        self.client.unregister_cuda_shared_memory("c")
        self.assertNotEqual(mapped(), "0")
        self.client.unregister_cuda_shared_memory("a")
        self.assertEqual(self.status(), {"b": (0, 4096)})
        self.client.unregister_cuda_shared_memory()
        self.assertEqual(self.status(), {})
        self.assertEqual(mapped(), "0")
        self.client.register_cuda_shared_memory("a", first, 0, 64)

    def test_infer(self):
        for model in ("gpu", "cpu"):
            with self.subTest(model):
                self.check(model)
                self.client.unregister_cuda_shared_memory()
                self.free("in")
                self.free("out")

    def test_large(self):
        numbers = np.random.default_rng(1).random((8, 100_003), dtype=np.float32)  # 3 MiB, in parts
        self.register("in", numbers)
        self.register("out", size=numbers.nbytes)
        self.infer("gpu", numbers.shape, ("in", numbers.nbytes), ("out", numbers.nbytes))
        np.testing.assert_array_equal(self.contents("out", numbers.shape), numbers)

    def test_offsets(self):
        numbers = np.arange(64, dtype=np.float32)
        self.register("all", numbers)
        self.infer("gpu", [1, 4], ("all", 16, 4 * 7), ("all", 20, 4 * 30))
        want = numbers.copy()
        want[30:34] = numbers[7:11]
        np.testing.assert_array_equal(self.contents("all", [64]), want)

    def test_beside_system_memory_and_the_message(self):
        numbers = np.arange(8, dtype=np.float32)
        self.register("out", size=32)
        key = f"/cuda-test-{os.getpid()}"
        region = system.create_shared_memory_region("in", key, 32)
        self.addCleanup(system.destroy_shared_memory_region, region)
        system.set_shared_memory_region(region, [numbers])
        self.client.register_system_shared_memory("in", key, 32)
        self.infer("gpu", [1, 8], ("in", 32), ("out", 32))
        np.testing.assert_array_equal(self.contents("out", [8]), numbers)
        tensor = self.module.InferInput("INPUT0", [1, 8], "FP32")
        tensor.set_shared_memory("out", 32)
        np.testing.assert_array_equal(self.client.infer("gpu", [tensor]).as_numpy("OUTPUT0"), [numbers])

    def test_refusals(self):
        self.register("a")
        for name, text, given, wanted in (
            ("an unknown input", "Unable to find shared memory region: 'c'", ("c", 64), ("a", 64)),
            ("an unknown output", "Unable to find shared memory region: 'c'", ("a", 64), ("c", 64)),
            ("an offset beyond", "Invalid offset for shared memory region: 'a'", ("a", 64, 64), ("a", 64)),
            ("an end beyond", "Invalid offset + byte size for shared memory region: 'a'", ("a", 64), ("a", 64, 4)),
            ("a small output", "(60 bytes) should be at least 64 bytes", ("a", 64), ("a", 60)),
            ("a sum that overflows", "Invalid offset + byte size for shared memory region: 'a'", ("a", 2**62), ("a", 64)),
        ):
            with self.subTest(name):
                self.refused(text, self.infer, "gpu", [1, 16], given, wanted)

    def test_handles_that_lie(self):
        handle, other, stale = self.create("a"), self.create("b", device=1), self.create("c", size=5000)
        self.free("c")
        invalid = "failed to register shared memory region 'r': invalid args"
        for name, given, device, size in (
            ("nothing", base64.b64encode(bytes(64)), 0, 64),
            ("garbage", base64.b64encode(bytes(range(64))), 0, 64),
            ("of memory that was freed", stale, 0, 64),
            ("of another device", other, 0, 64),
            ("for another device", handle, 1, 64),
            ("for a device that is not there", handle, 7, 64),
            ("for a device that cannot be", handle, -1, 64),
            ("of more than there is", handle, 0, 1 << 20),
            ("of as much as there can be", handle, 0, 2**64 - 1),
            ("of nothing", handle, 0, 0),
        ):
            with self.subTest(name):
                text = self.refused(invalid, self.client.register_cuda_shared_memory, "r", given, device, size)
                self.assertNotIn("/", text)
                self.assertEqual(self.status(), {})
        self.assertEqual(mapped(), "0")
        self.check()

    @unittest.skipUnless(os.environ["WORKERS"], "nobody starts the worker again")
    def test_a_worker_that_starts_again(self):
        numbers = self.check()
        # Others go on meanwhile.
        over, failed = threading.Event(), []

        def others():
            client = self.connect()
            while not over.is_set():
                tensor = self.module.InferInput("INPUT0", [1, 1], "FP32")
                tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
                try:
                    client.infer("cpu", [tensor])
                except InferenceServerException as error:
                    failed.append(error)
            client.close()

        thread = threading.Thread(target=others)
        thread.start()
        try:
            os.kill(worker("gpu:0"), signal.SIGKILL)
            cuda.set_shared_memory_region(self.regions["out"], [np.zeros_like(numbers)])
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    self.infer("gpu", numbers.shape, ("in", numbers.nbytes), ("out", numbers.nbytes))
                    break
                except InferenceServerException as error:
                    self.assertLess(time.monotonic(), until, error)
                    self.assertNotIn("invalid args", error.message())
                    time.sleep(0.05)
            np.testing.assert_array_equal(self.contents("out", numbers.shape), numbers)
            # Memory that is gone by then cannot be mapped again.
            self.free("in")
            before = worker("gpu:0")
            os.kill(before, signal.SIGKILL)
            while worker("gpu:0") in (None, before):
                self.assertLess(time.monotonic(), until + PATIENCE)
                time.sleep(0.05)
            while True:
                with self.assertRaises(InferenceServerException) as caught:
                    self.infer("cpu", numbers.shape, ("in", numbers.nbytes), ("out", numbers.nbytes))
                if "cannot be reached" not in caught.exception.message():
                    break
                self.assertLess(time.monotonic(), until + 2 * PATIENCE)
                time.sleep(0.05)
            self.assertIn("shared memory region 'in' has changed", caught.exception.message())
            self.assertIn("register it again", caught.exception.message())
            self.client.unregister_cuda_shared_memory()
            self.free("out")
            self.check("cpu")
        finally:
            over.set()
            thread.join()
        self.assertEqual(failed, [])


class OverHTTP(CUDASharedMemory, unittest.TestCase):
    module = http_client

    def connect(self):
        return http_client.InferenceServerClient(HTTP_URL)


class OverGRPC(CUDASharedMemory, unittest.TestCase):
    module = grpc_client

    def connect(self):
        return grpc_client.InferenceServerClient(GRPC_URL)


if __name__ == "__main__":
    unittest.main()
