"""Loads and unloads models with the real clients, over HTTP and gRPC."""

import json
import os
import time
import unittest

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

MODEL = os.environ.get("MODEL", "")


class Repository:
    """What both protocols must do. The server has simple and echo, and loads nothing by itself."""

    def index(self):
        entries = self.client.get_model_repository_index()
        entries = entries if isinstance(entries, list) else [
            {"name": m.name, "version": m.version, "state": m.state, "reason": m.reason} for m in entries.models
        ]
        return {e["name"]: e for e in entries}

    def add(self, version=""):
        values = np.arange(16, dtype=np.int32).reshape(1, 16)
        inputs = [self.module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
        for tensor in inputs:
            tensor.set_data_from_numpy(values)
        result = self.client.infer("simple", inputs, model_version=version)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values + values)

    def tearDown(self):
        self.client.unload_model("simple")
        self.client.close()

    def test_load_and_unload(self):
        self.client.load_model("simple")
        self.assertTrue(self.client.is_model_ready("simple"))
        self.add()
        self.client.unload_model("simple", unload_dependents=True)
        end = time.monotonic() + 60
        while (entry := self.index()["simple"])["state"] == "UNLOADING" and time.monotonic() < end:
            pass  # unload answers when it has begun
        self.assertEqual((entry["state"], entry["reason"]), ("UNAVAILABLE", "unloaded"))

    def test_configuration(self):
        config = {"backend": "onnxruntime", "max_batch_size": 2}
        self.client.load_model("simple", config=json.dumps(config))
        self.add()
        got = self.client.get_model_config("simple")
        got = got if isinstance(got, dict) else {"max_batch_size": got.config.max_batch_size}
        self.assertEqual(got["max_batch_size"], 2)
        self.client.load_model("simple")

    def test_files(self):
        with open(MODEL, "rb") as file:
            files = {"file:3/model.onnx": file.read()}
        with self.assertRaisesRegex(InferenceServerException, "'config' must be specified"):
            self.client.load_model("simple", files=files)
        self.client.load_model("simple", config="{}", files=files)
        self.add(version="3")
        self.client.load_model("simple")
        self.add(version="1")

    def test_failures(self):
        with self.assertRaisesRegex(InferenceServerException, "failed to load 'nosuch', failed to poll from model repository"):
            self.client.load_model("nosuch")
        with self.assertRaisesRegex(InferenceServerException, "load failed for model 'simple'"):
            self.client.load_model("simple", config="{}", files={"file:1/model.onnx": b"no model"})
        self.client.unload_model("nosuch")


class Http(Repository, unittest.TestCase):
    module = httpclient

    def setUp(self):
        self.client = httpclient.InferenceServerClient(os.environ["HTTP_URL"])


class Grpc(Repository, unittest.TestCase):
    module = grpcclient

    def setUp(self):
        self.client = grpcclient.InferenceServerClient(os.environ["GRPC_URL"])


if __name__ == "__main__":
    unittest.main()
