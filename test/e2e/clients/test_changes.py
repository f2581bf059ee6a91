"""What the real clients see of models that come, go and fail, over HTTP and gRPC, in Triton's own texts.

The server runs under explicit control with the models echo, of version 1, and half, whose version 2 no backend can load; it has
loaded neither. HTTP_URL and GRPC_URL say where it is, and HALF is the configuration of half in JSON.
"""

import json
import os
import time
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

PATIENCE = 60  # seconds, for what takes none of them
HALF = json.loads(os.environ["HALF"])  # the configuration of half


class Changes:
    """What both protocols must show."""

    module = None
    missing = unavailable = invalid = None

    def tearDown(self):
        for model in ("echo", "half"):
            self.client.unload_model(model)
            self.until(model, lambda states: not {"READY", "UNLOADING"} & states)
        self.client.close()

    def until(self, model, holds):
        """Waits until the states of a model's versions in the index are as wanted: an unload answers when it has begun."""
        end = time.monotonic() + PATIENCE
        while not holds(states := self.states(model)):
            self.assertLess(time.monotonic(), end, f"{model} stays {states}")

    def states(self, model):
        entries = self.client.get_model_repository_index()
        if isinstance(entries, list):
            return {e.get("state", "") for e in entries if e["name"] == model}
        return {e.state for e in entries.models if e.name == model}

    def infer(self, model, version=""):
        tensor = self.module.InferInput("x", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[7]], np.int32))
        return self.client.infer(model, [tensor], model_version=version).as_numpy("y").tolist()

    def refused(self, status, text, call):
        with self.assertRaises(InferenceServerException) as caught:
            call()
        self.assertIn(text, caught.exception.message())
        self.assertIn(status, str(caught.exception.status()))

    def test_readiness_of_what_does_not_serve(self):
        self.assertFalse(self.client.is_model_ready("nosuch"))
        self.assertFalse(self.client.is_model_ready("echo"))
        self.client.load_model("echo")
        self.assertTrue(self.client.is_model_ready("echo"))
        self.assertFalse(self.client.is_model_ready("echo", "9"))
        self.client.unload_model("echo")
        self.until("echo", lambda states: states == {"UNAVAILABLE"})
        self.assertFalse(self.client.is_model_ready("echo"))
        self.assertFalse(self.client.is_model_ready("echo", "1"))

    def test_requests_for_what_was_unloaded(self):
        self.client.load_model("echo")
        self.assertEqual(self.infer("echo"), [[7]])
        self.client.unload_model("echo")
        self.until("echo", lambda states: states == {"UNAVAILABLE"})
        self.refused(self.missing, "Request for unknown model: 'echo' has no available versions", lambda: self.infer("echo"))
        self.refused(self.unavailable, "Request for unknown model: 'echo' version 1 is not at ready state", lambda: self.infer("echo", "1"))
        self.refused(self.missing, "Request for unknown model: 'echo' version 9 is not found", lambda: self.infer("echo", "9"))
        self.refused(self.missing, "Request for unknown model: 'nosuch' is not found", lambda: self.infer("nosuch"))

    def test_a_version_that_fails_takes_those_loaded_with_it(self):
        self.refused(
            self.invalid, "load failed for model 'half': version 2 is at UNAVAILABLE state: ", lambda: self.client.load_model("half"),
        )
        self.until("half", lambda states: states == {"UNAVAILABLE"})
        self.assertFalse(self.client.is_model_ready("half"))
        self.refused(self.missing, "Request for unknown model: 'half' has no available versions", lambda: self.infer("half"))

    def test_a_version_that_fails_leaves_those_that_served(self):
        only = json.dumps({**HALF, "version_policy": {"specific": {"versions": [1]}}})
        self.client.load_model("half", config=only)
        self.client.load_model("half")  # which keeps the configuration
        self.refused(
            self.invalid, "load failed for model 'half': version 2 is at UNAVAILABLE state: ",
            lambda: self.client.load_model("half", config=json.dumps(HALF)),
        )
        self.assertTrue(self.client.is_model_ready("half", "1"))

    def test_an_override_lasts_until_an_unload(self):
        self.client.load_model("echo", config=(
            '{"backend": "echo", "max_batch_size": 1, "input": [{"name": "x", "data_type": "TYPE_INT32", "dims": [1]}],'
            ' "output": [{"name": "given", "data_type": "TYPE_INT32", "dims": [1]}]}'
        ))
        self.assertEqual(self.outputs(), ["given"])
        self.client.load_model("echo")
        self.assertEqual(self.outputs(), ["given"])
        self.client.unload_model("echo")
        self.client.load_model("echo")
        self.assertEqual(self.outputs(), ["y"])

    def outputs(self):
        metadata = self.client.get_model_metadata("echo")
        return [o["name"] for o in metadata["outputs"]] if isinstance(metadata, dict) else [o.name for o in metadata.outputs]


class Http(Changes, unittest.TestCase):
    module = http_client
    missing, unavailable, invalid = "404", "503", "400"

    def setUp(self):
        self.client = http_client.InferenceServerClient(os.environ["HTTP_URL"])


class Grpc(Changes, unittest.TestCase):
    module = grpc_client
    missing, unavailable, invalid = "NOT_FOUND", "UNAVAILABLE", "INVALID_ARGUMENT"

    def setUp(self):
        self.client = grpc_client.InferenceServerClient(os.environ["GRPC_URL"])

    def test_names_of_what_is_no_model(self):
        self.refused("INTERNAL", "failed to load '../etc', failed to poll from model repository", lambda: self.client.load_model("../etc"))
        self.client.unload_model("../etc")


if __name__ == "__main__":
    unittest.main()
