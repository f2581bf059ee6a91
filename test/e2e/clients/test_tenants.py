"""Tenants with the real clients: keys, limits, models, and what a refusal says."""

import json
import os
import unittest
import urllib.error
import urllib.request

import grpc
import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

HTTP, GRPC = os.environ["HTTP_URL"], os.environ["GRPC_URL"]
DATA = np.array([[7]], dtype=np.int32)


def inputs(client):
    x = client.InferInput("x", [1, 1], "INT32")
    x.set_data_from_numpy(DATA)
    return [x]


class Tenants(unittest.TestCase):
    def setUp(self):
        self.grpc = grpcclient.InferenceServerClient(GRPC)
        self.http = httpclient.InferenceServerClient(HTTP)
        self.addCleanup(self.grpc.close)
        self.addCleanup(self.http.close)

    def infer(self, protocol, model, key, **more):
        client, module = (self.grpc, grpcclient) if protocol == "grpc" else (self.http, httpclient)
        return client.infer(model, inputs(module), headers={"x-api-key": key} if key else None, **more)

    def refused(self, protocol, model, key):
        with self.assertRaises(InferenceServerException) as caught:
            self.infer(protocol, model, key)
        return caught.exception

    def test_keys(self):
        for protocol, unauthenticated, forbidden in (("grpc", "StatusCode.UNAUTHENTICATED", "StatusCode.PERMISSION_DENIED"), ("http", "401", "403")):
            with self.subTest(protocol):
                np.testing.assert_array_equal(self.infer(protocol, "m", "acme").as_numpy("y"), DATA)
                e = self.refused(protocol, "m", "acne")
                self.assertEqual((e.status(), "acne" in e.message()), (unauthenticated, False))
                e = self.refused(protocol, "private", "small")
                self.assertEqual(e.status(), forbidden)
                self.assertIn("tenant 'small' may not use model 'private'", e.message())
                self.infer(protocol, "private", "acme")

    def test_limits(self):
        for protocol, status in (("grpc", "StatusCode.RESOURCE_EXHAUSTED"), ("http", "429")):
            with self.subTest(protocol):
                taken = 0
                with self.assertRaises(InferenceServerException) as caught:
                    for _ in range(1000):
                        self.infer(protocol, "m", protocol)
                        taken += 1
                self.assertEqual(caught.exception.status(), status)
                self.assertIn("requests per", caught.exception.message())
                self.assertLessEqual(taken, 5)
                self.infer(protocol, "m", "acme")  # others are not concerned

    def test_what_a_refusal_says(self):
        with self.assertRaises(grpc.RpcError) as caught:
            channel = grpc.insecure_channel(GRPC)
            self.addCleanup(channel.close)
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata", request_serializer=lambda m: m, response_deserializer=lambda m: m)
            call(b"\n\x07private", metadata=[("authorization", "Bearer small")])
        details = dict(caught.exception.trailing_metadata())["grpc-status-details-bin"]
        self.assertEqual(caught.exception.code(), grpc.StatusCode.PERMISSION_DENIED)
        self.assertIn(b"google.rpc.ErrorInfo", details)
        self.assertIn(b"tenant_forbidden", details)

        body = json.dumps({"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}).encode()
        with self.assertRaises(urllib.error.HTTPError) as caught:
            for _ in range(1000):
                urllib.request.urlopen(urllib.request.Request(f"http://{HTTP}/v2/models/m/infer", body, {"x-api-key": "curl"})).close()
        refusal = caught.exception
        self.addCleanup(refusal.close)
        self.assertEqual((refusal.code, refusal.headers["Nereid-Reason"]), (429, "quota_exceeded"))
        self.assertGreaterEqual(int(refusal.headers["Retry-After"]), 1)
        self.assertRegex(refusal.headers["RateLimit"], r'^"requests";r=\d+;t=\d+$')
        url = f"http://{HTTP}/nereid/requests/{refusal.headers['Nereid-Request-Id']}"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"x-api-key": "curl"})) as answer:
            told = json.load(answer)
        self.assertEqual((told["outcome"], told["tenant"], told["band"]), ("quota_exceeded", "curl", "low"))
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, headers={"x-api-key": "acme"}))
        self.assertEqual(caught.exception.code, 404)  # another tenant's
        caught.exception.close()

    def test_what_became_of_a_request(self):
        self.infer("grpc", "m", "acme", request_id="mine")
        with urllib.request.urlopen(urllib.request.Request(f"http://{HTTP}/nereid/requests/mine", headers={"x-api-key": "acme"})) as answer:
            told = json.load(answer)
        self.assertEqual((told["outcome"], told["protocol"], told["class"], told["band"], told["batch"]["size"]), ("good", "grpc", "single", "high", 1))
        self.assertGreater(told["cost_units"], 0)
        self.assertLessEqual(sum(s["seconds"] for s in told["spent"]), told["total_seconds"] * 1.01)


if __name__ == "__main__":
    unittest.main()
