"""The real Triton clients and the example models in Python.

HTTP_URL and GRPC_URL say where the server is.
"""

import os
import queue
import subprocess
import sys
import unittest
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

HTTP, GRPC = os.environ["HTTP_URL"], os.environ["GRPC_URL"]
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def texts(module, *given, shape=(-1, 1)):
    made = module.InferInput("TEXT", list(np.empty(len(given)).reshape(shape).shape), "BYTES")
    made.set_data_from_numpy(np.array([text.encode() for text in given], np.object_).reshape(shape))
    return [made]


class Clients(unittest.TestCase):
    def setUp(self):
        self.http = http_client.InferenceServerClient(HTTP, concurrency=8)
        self.grpc = grpc_client.InferenceServerClient(GRPC)
        self.addCleanup(self.http.close)
        self.addCleanup(self.grpc.close)

    def ways(self):
        return (http_client, self.http), (grpc_client, self.grpc)


class Snippet(Clients):
    def test_an_ensemble_names_the_language_of_a_text(self):
        for module, client in self.ways():
            with self.subTest(client=module.__name__):
                result = client.infer("snippet", texts(module, "package main\n\nimport \"fmt\"\n\nfunc main() {\n\tfmt.Println(1)\n}\n"))
                self.assertEqual(result.as_numpy("LANGUAGE").tolist(), [[b"Go"]])
                self.assertGreater(result.as_numpy("CONFIDENCE")[0, 0], 0.5)

    def test_what_a_step_refuses_the_ensemble_refuses(self):
        for module, client in self.ways():
            with self.subTest(client=module.__name__), self.assertRaisesRegex(InferenceServerException, "in ensemble 'snippet', .*a text is empty"):
                client.infer("snippet", texts(module, ""))


class ReadDigit(Clients):
    def test_an_ensemble_reads_the_digits_of_files(self):
        files = [(EXAMPLES / "images" / f"{digit}_a.png").read_bytes() for digit in range(10)]
        for module, client in self.ways():
            with self.subTest(client=module.__name__):
                png = module.InferInput("PNG", [10, 1], "BYTES")
                png.set_data_from_numpy(np.array(files, np.object_).reshape(10, 1))
                result = client.infer("read_digit", [png])
                self.assertEqual(result.as_numpy("DIGIT").flatten().tolist(), list(range(10)))
                self.assertGreater(result.as_numpy("PROBABILITY").min(), 0.5)

    def test_what_is_no_picture_is_refused(self):
        for module, client in self.ways():
            png = module.InferInput("PNG", [1, 1], "BYTES")
            png.set_data_from_numpy(np.array([[b"GIF89a"]], np.object_))
            with self.subTest(client=module.__name__), self.assertRaisesRegex(InferenceServerException, "in ensemble 'read_digit', picture 0 of the request is no PNG "):
                client.infer("read_digit", [png])


class Tokenizer(Clients):
    def test_texts_are_bytes_that_language_takes(self):
        for module, client in self.ways():
            with self.subTest(client=module.__name__):
                result = client.infer("tokenizer", texts(module, "package main\n", "é"))
                self.assertEqual(result.as_numpy("length").tolist(), [[13], [2]])
                rows = result.as_numpy("text")
                self.assertEqual((rows[0].tobytes(), rows[1].tobytes()), (b"package main\n", "é".encode() + bytes(11)))
                text = module.InferInput("text", [1, 13], "UINT8")
                text.set_data_from_numpy(rows[:1])
                self.assertEqual(client.infer("language", [text]).as_numpy("probabilities").shape, (1, 13))

    def test_an_empty_text_is_refused_alone(self):
        asked = [self.http.async_infer("tokenizer", texts(http_client, text)) for text in ("a", "", "b", "")]
        for one, fails in zip(asked, (False, True, False, True)):
            if fails:
                with self.assertRaisesRegex(InferenceServerException, "a text is empty") as caught:
                    one.get_result()
                self.assertEqual(caught.exception.status(), "400")
            else:
                self.assertEqual(one.get_result().as_numpy("length").tolist(), [[1]])


class Router(Clients):
    def test_texts_are_classified_and_first_lines_believed(self):
        go = (EXAMPLES.parent / "test/e2e/doc.go").read_text()
        python = (EXAMPLES / "clients/classify.py").read_text()
        for module, client in self.ways():
            with self.subTest(client=module.__name__):
                result = client.infer("router", texts(module, go, "#!/bin/sh\nls\n", python))
                self.assertEqual(result.as_numpy("LANGUAGE").tolist(), [[b"Go"], [b"Shell"], [b"Python"]])
                self.assertEqual(result.as_numpy("MODEL").tolist(), [[b"language"], [b"router"], [b"language"]])
                confidence = result.as_numpy("CONFIDENCE").flatten()
                self.assertEqual(confidence[1], 1)
                self.assertTrue(((confidence > 0) & (confidence <= 1)).all())

    def test_many_texts_at_once(self):
        python = (EXAMPLES / "clients/classify.py").read_text()
        given = [python[n:] for n in range(32)]
        asked = [self.http.async_infer("router", texts(http_client, *given[n % 8 :])) for n in range(32)]
        for n, one in enumerate(asked):
            self.assertEqual(one.get_result().as_numpy("LANGUAGE").shape, (32 - n % 8, 1))

    def test_what_cannot_be_routed_is_refused(self):
        for text, parameters, message in (("", None, "a text is empty"), ("a", {"classifier": "digits"}, "there is no classifier digits")):
            for module, client in self.ways():
                with self.subTest(message, client=module.__name__), self.assertRaisesRegex(InferenceServerException, message) as caught:
                    client.infer("router", texts(module, text), parameters=parameters)
                self.assertEqual(caught.exception.status(), "400" if module is http_client else "StatusCode.INVALID_ARGUMENT")


class Words(Clients):
    def test_the_example_client_prints_each_word(self):
        said = subprocess.run(
            [sys.executable, EXAMPLES / "clients/words.py", "--url", GRPC, "--pause", "1", "one two  three"],
            check=True, capture_output=True, text=True,
        )
        self.assertEqual(said.stdout, "one two three\n")

    def test_a_client_that_leaves_ends_its_stream(self):
        came = queue.Queue()
        client = grpc_client.InferenceServerClient(GRPC)
        self.addCleanup(client.close)
        client.start_stream(lambda result, error: came.put((result, error)))
        given = texts(grpc_client, "word " * 1_000_000, shape=(1,))
        client.async_stream_infer("words", given, parameters={"pause_ms": 1})
        result, error = came.get()
        self.assertIsNone(error)
        self.assertEqual(result.as_numpy("WORD").tolist(), [b"word"])
        client.stop_stream(cancel_requests=True)


if __name__ == "__main__":
    unittest.main()
