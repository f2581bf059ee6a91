"""The real Triton clients and Python models that die, hang or misbehave.

HTTP_URL and GRPC_URL say where the server is, FAULTS_DIR where the models leave files. Each fault has a model of its name, which a load asks meanwhile: each of its
requests has one answer, and only those that the model's process had when it died fail.
"""

import collections
import itertools
import os
import queue
import signal
import threading
import unittest

import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

HTTP, GRPC, DIRECTORY = (os.environ[name] for name in ("HTTP_URL", "GRPC_URL", "FAULTS_DIR"))

DEAD = "Stub process '.*' is not healthy: "


def inputs(module, number, how=""):
    given = []
    for name, data, datatype in (("HOW", np.array([how.encode()], np.object_), "BYTES"), ("N", np.array([number], np.int32), "INT32")):
        given.append(module.InferInput(name, [1], datatype))
        given[-1].set_data_from_numpy(data)
    return given


class Load:
    """Requests to a model over HTTP, gRPC and a stream, until it is left."""

    CLIENTS = 3  # of HTTP and of gRPC

    def __init__(self, model):
        self.model = model
        self.numbers = itertools.count(1)
        self.enough = threading.Event()
        self.answered = collections.Counter()  # by number
        self.failures = []  # texts
        self.sent = 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=call, daemon=True) for call in [self.http, self.grpc] * self.CLIENTS + [self.stream]]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.enough.set()
        for thread in self.threads:
            thread.join()

    def count(self):
        with self.lock:
            return sum(self.answered.values())

    def send(self):
        with self.lock:
            self.sent += 1
            return next(self.numbers)

    def take(self, result, error):
        with self.lock:
            if error is None:
                self.answered[int(result.as_numpy("N")[0])] += 1
            else:
                self.failures.append(error.message())

    def calls(self, module, client):
        while not self.enough.is_set():
            try:
                self.take(client.infer(self.model, inputs(module, self.send())), None)
            except InferenceServerException as e:
                self.take(None, e)

    def http(self):
        # A connection may have to wait for as long as a model takes to come back.
        with http_client.InferenceServerClient(HTTP, connection_timeout=600, network_timeout=600) as client:
            self.calls(http_client, client)

    def grpc(self):
        with grpc_client.InferenceServerClient(GRPC) as client:
            self.calls(grpc_client, client)

    def stream(self):
        came = queue.Queue()
        with grpc_client.InferenceServerClient(GRPC) as client:
            client.start_stream(lambda result, error: came.put((result, error)))
            while not self.enough.is_set():
                several = 4
                for _ in range(several):
                    client.async_stream_infer(self.model, inputs(grpc_client, self.send()))
                for _ in range(several):
                    self.take(*came.get())
            client.stop_stream()


class Faults(unittest.TestCase):
    def setUp(self):
        self.grpc = grpc_client.InferenceServerClient(GRPC)
        self.addCleanup(self.grpc.close)

    def ask(self, model, how="", **more):
        """Has the model do something, and returns the process that it answers with."""
        result = self.grpc.infer(model, inputs(grpc_client, 0, how), **more)
        self.assertEqual(result.as_numpy("N").tolist(), [0])
        return int(result.as_numpy("PROCESS")[0])

    def under_load(self, model, act, kills):
        """Acts while the model is under load, and holds what the load got."""
        with Load(model) as load:
            self.wait_for_more(load)
            before = self.ask(model)
            act(before)
            after = self.ask_alive(model) if kills else self.ask(model)
            self.wait_for_more(load)
        self.assertEqual(before != after, kills)
        twice = [number for number, times in load.answered.items() if times != 1]
        self.assertEqual(twice, [])
        self.assertEqual(load.count() + len(load.failures), load.sent)
        for text in load.failures:
            self.assertRegex(text, DEAD)
        if not kills:
            self.assertEqual(load.failures, [])

    def wait_for_more(self, load, answers=20):
        enough = load.count() + answers
        while load.count() < enough:
            self.assertTrue(all(thread.is_alive() for thread in load.threads))
            threading.Event().wait(0.01)

    def ask_alive(self, model):
        """Returns the model's process once there is one."""
        while True:
            try:
                return self.ask(model)
            except InferenceServerException as e:
                self.assertRegex(e.message(), DEAD)

    def dies(self, how, cause):
        def act(_):
            with self.assertRaises(InferenceServerException) as failed:
                self.ask(how, how)
            self.assertEqual(failed.exception.status(), "StatusCode.INTERNAL")
            self.assertRegex(failed.exception.message(), DEAD + cause)

        self.under_load(how, act, kills=True)

    def fails(self, how, text):
        def act(_):
            with self.assertRaises(InferenceServerException) as failed:
                self.ask(how, how)
            self.assertRegex(failed.exception.message(), text)

        self.under_load(how, act, kills=False)

    def test_a_process_that_is_killed(self):
        self.under_load("kill", lambda process: os.kill(process, signal.SIGKILL), kills=True)

    def test_a_process_that_ends_itself(self):
        self.dies("leave", "it ended with exit status 3; its last line was: told to leave")

    def test_a_process_that_crashes(self):
        self.dies("crash", r"it was ended by signal 11 \(segmentation fault\)")

    def test_a_process_that_writes_to_the_worker(self):
        self.dies("interrupt", "it was killed: ")

    def test_memory_that_there_is_not(self):
        self.fails("allocate", "MemoryError")

    def test_an_exception(self):
        self.fails("complain", "ValueError: told to complain")

    def test_output_that_is_no_text(self):
        self.under_load("babble", lambda process: self.assertEqual(self.ask("babble", "babble"), process), kills=False)

    def test_a_child_that_goes_on_as_if_it_were_the_model(self):
        self.under_load("fork", lambda process: self.assertNotEqual(self.ask("fork", "fork"), process), kills=False)

    def test_a_model_that_hangs(self):
        def act(_):
            timeout = 0.5
            while not os.path.exists(os.path.join(DIRECTORY, "hangs")):  # else the deadline was over before
                with self.assertRaises(InferenceServerException) as failed:
                    self.ask("hang", "hang", client_timeout=timeout)
                self.assertEqual(failed.exception.status(), "StatusCode.DEADLINE_EXCEEDED")
                timeout *= 2

        self.under_load("hang", act, kills=True)


if __name__ == "__main__":
    unittest.main()
