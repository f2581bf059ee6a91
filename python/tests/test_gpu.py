"""Tensors on GPUs, over a driver that stands for CUDA's."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import unittest
from unittest import mock

import numpy as np
import triton_python_backend_utils as pb_utils
from nereid.stub import cuda, dlpack, tensors


class Foreign:
    """A tensor of another library, on a device."""

    def __init__(self, array, address, device=(2, 0), streams=None):
        self.capsule = dlpack._capsule(address, device, array.dtype, array.shape, False, array)
        self.device = device
        self.streams = streams

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        if self.streams is not None:
            self.streams.append(stream)
        return self.capsule


class Connection:
    """What takes large tensors."""

    class own:
        @staticmethod
        def take(size):
            Connection.memory = bytearray(size)
            return Connection.memory, 3, 0


@unittest.skipUnless(shutil.which("cc"), "there is no C compiler")
class TestGPU(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.dir.name, "libcuda.so.1")
        source = os.path.join(os.path.dirname(__file__), "driver.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", cls.path, source], check=True)
        cls.library = ctypes.CDLL(cls.path)
        cls.library.device_memory.restype = ctypes.c_void_p
        cls.library.device_memory.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def setUp(self):
        self.enterContextOf(mock.patch.object(cuda, "LIBRARY", self.path))
        self.enterContextOf(mock.patch.object(cuda, "DRIVER", cuda.Driver()))

    def enterContextOf(self, patch):
        patch.start()
        self.addCleanup(patch.stop)

    def on_device(self, array, **options):
        return Foreign(array, self.library.device_memory(array.tobytes(), array.nbytes), **options)

    def test_a_tensor_stays_on_its_device(self):
        streams = []
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensor = pb_utils.Tensor.from_dlpack("a", self.on_device(array, streams=streams))
        self.assertEqual((tensor.name(), tensor.shape(), tensor.is_cpu(), tensor.__dlpack_device__()), ("a", [2, 3], False, (2, 0)))
        self.assertEqual(streams, [1])
        with self.assertRaises(pb_utils.TritonModelException) as raised:
            tensor.as_numpy()
        self.assertEqual(str(raised.exception), "Tensor is stored in GPU and cannot be converted to NumPy.")
        back = pb_utils.Tensor.from_dlpack("b", tensor.to_dlpack())
        self.assertEqual((back.is_cpu(), back.shape(), back._device._data), (False, [2, 3], tensor._device._data))
        self.assertEqual(self.library.device_copies(), 0)

    def test_outputs_are_copied(self):
        for size in (3, 5000):
            array = np.arange(size, dtype=np.int64)
            body = []
            before = self.library.device_copies()
            listed = tensors.encode(Connection, [pb_utils.Tensor.from_dlpack("a", self.on_device(array))], body)
            self.assertEqual(b"".join(body) or bytes(Connection.memory), array.tobytes())
            self.assertEqual(listed[0][:3], ["a", "INT64", (size,)])
            self.assertEqual((self.library.device_copies() - before, self.library.device_busy()), (1, 0))
        empty = pb_utils.Tensor.from_dlpack("a", Foreign(np.zeros((0, 2), np.float32), 0))
        self.assertEqual(tensors.encode(Connection, [empty], body)[0][2], (0, 2))

    def test_what_cannot_be_copied(self):
        array = np.zeros(4, np.float32)
        cases = (
            (Foreign(array, 4096), "CUDA cannot copy 16 bytes from GPU 0: an illegal memory access was encountered"),
            (self.on_device(array, device=(2, 5)), "CUDA cannot find GPU 5: invalid device ordinal"),
        )
        for source, text in cases:
            with self.subTest(text), self.assertRaises(pb_utils.TritonModelException) as raised:
                tensors.encode(Connection, [pb_utils.Tensor.from_dlpack("a", source)], [])
            self.assertEqual((str(raised.exception), self.library.device_busy()), (text, 0))
        with mock.patch.object(cuda, "LIBRARY", "/none/libcuda.so.1"), mock.patch.object(cuda, "DRIVER", cuda.Driver()):
            with self.assertRaises(pb_utils.TritonModelException) as raised:
                tensors.encode(Connection, [pb_utils.Tensor.from_dlpack("a", self.on_device(array))], [])
        self.assertIn("NVIDIA's driver is not there", str(raised.exception))

    def test_other_devices_are_refused(self):
        with self.assertRaises(pb_utils.TritonModelException) as raised:
            pb_utils.Tensor.from_dlpack("a", self.on_device(np.zeros(1, np.float32), device=(10, 0)))
        self.assertEqual(str(raised.exception), "DLDevice type 10 is not support by Python backend.")


if __name__ == "__main__":
    unittest.main()
