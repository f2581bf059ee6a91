"""Generate requests, the log's settings and forwarded headers, by the real Triton clients and plain HTTP.

HTTP_URL and GRPC_URL say where the server is.
"""

import json
import os
import unittest
import urllib.error
import urllib.request

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

HTTP, GRPC = os.environ["HTTP_URL"], os.environ["GRPC_URL"]
BASE = HTTP if "://" in HTTP else "http://" + HTTP


def post(path, body):
    request = urllib.request.Request(BASE + "/v2/models/" + path, json.dumps(body).encode(), {"X-Route": "a"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers["Content-Type"], e.read().decode()


class Generate(unittest.TestCase):
    def test_names_become_inputs_and_parameters(self):
        status, kind, text = post("said/generate", {"TEXT": "hello", "id": "q", "temperature": 0.5, "parameters": {"top": 3}})
        self.assertEqual((status, kind), (200, "application/json"))
        response = json.loads(text)
        self.assertEqual(json.loads(response.pop("OUT")), {"id": "q", "temperature": 0.5, "top": 3})
        self.assertEqual(response, {"id": "q", "model_name": "said", "model_version": "1"})

    def test_responses_are_events(self):
        status, kind, text = post("counted/generate_stream", {"N": 3})
        self.assertEqual((status, kind), (200, "text/event-stream; charset=utf-8"))
        events = [json.loads(e.removeprefix("data: ")) for e in text.split("\n\n") if e]
        self.assertEqual([e["I"] for e in events], [0, 1, 2])

    def test_one_response_is_needed(self):
        self.assertEqual(post("counted/generate", {"N": 1})[0], 200)
        status, _, text = post("counted/generate", {"N": 2})
        self.assertEqual(status, 500)
        self.assertIn("generate expects model to produce exactly 1 response", json.loads(text)["error"])


class Headers(unittest.TestCase):
    def said(self, model):
        for module, url in (http_client, HTTP.removeprefix("http://")), (grpc_client, GRPC):
            with module.InferenceServerClient(url) as client:
                text = module.InferInput("TEXT", [1], "BYTES")
                text.set_data_from_numpy(np.array([b"a"], np.object_))
                result = client.infer(model, [text], headers={"x-route": "a", "x-api-key": "secret", "other": "b"})
                yield json.loads(result.as_numpy("OUT")[0])

    def test_headers_reach_models_and_steps(self):
        for model in "said", "composed":
            self.assertEqual(list(self.said(model)), [{"x-route": "a"}] * 2, model)

    def test_headers_do_not_reach_what_models_call(self):
        self.assertEqual(list(self.said("caller")), [{}] * 2)


class Logging(unittest.TestCase):
    def test_settings_change(self):
        with http_client.InferenceServerClient(HTTP.removeprefix("http://")) as over_http, grpc_client.InferenceServerClient(GRPC) as over_grpc:
            before = over_http.get_log_settings()
            self.assertEqual(before, {"log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0, "log_format": "json"})
            after = over_http.update_log_settings({"log_verbose_level": 1, "log_warning": False})
            self.assertEqual(after, before | {"log_verbose_level": 1, "log_warning": False})
            settings = over_grpc.get_log_settings(as_json=True)["settings"]
            self.assertEqual((settings["log_verbose_level"], settings["log_warning"]), ({"uint32_param": 1}, {"bool_param": False}))
            changed = over_grpc.update_log_settings({"log_verbose_level": 0, "log_warning": True, "log_format": "ISO8601"}, as_json=True)
            self.assertEqual(changed["settings"]["log_format"], {"string_param": "ISO8601"})
            for client in over_http, over_grpc:
                with self.assertRaisesRegex(InferenceServerException, "log file location can not be updated through network protocol"):
                    client.update_log_settings({"log_file": "x"})
            self.assertIn("logging", over_http.get_server_metadata()["extensions"])
            over_http.update_log_settings({"log_format": "json"})


if __name__ == "__main__":
    unittest.main()
