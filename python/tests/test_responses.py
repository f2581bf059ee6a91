"""Response senders, decoupled models, coroutines, and requests that are executed again."""

import unittest

import numpy as np

from .fake_worker import Worker
from .test_stub import executing

OK = "ok = pb_utils.InferenceResponse([pb_utils.Tensor('O', np.ones(3, np.float32))])\n"


def texts_of(errors):
    return [error[1] for error in errors]


class TestSenders(unittest.TestCase):
    def test_a_sender_may_give_the_one_response_of_a_model(self):
        source = executing(OK + """
sender = request.get_response_sender()
refused = []
for what in (dict(flags=1), dict(), dict(response=ok), dict(response=ok), dict(response=ok, flags=4), dict(flags=1), dict(flags=1)):
    try:
        sender.send(**what)
    except pb_utils.TritonModelException as error:
        refused.append(str(error))
print(refused)
return None
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            first = worker.responded()
            self.assertEqual((first["request"], list(first["response"]["outs"]), "final" in first), (0, ["O"], False))
            last = worker.responded()
            self.assertEqual(("response" in last, last["final"]), (False, True))
            self.assertNotIn("responses", worker.ran())
            self.assertEqual(
                eval(worker.printed()),
                [
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
                    "Inference Response object must be provided when the response flags is set to zero.",
                    "Unable to send response. Non-decoupled model cannot send more than one response.",
                    "Unable to send response. Unsupported flag provided.",
                    "Unable to send response. Response sender has been closed.",
                ],
            )

    def test_a_request_that_is_dropped_without_an_end_fails(self):
        of_model = "Failed to process the request(s) for model 'model_0_0', message: "
        for body, decoupled, text in (
            ("return None", False, of_model + "Expected a list in the execute return, found type '<class 'NoneType'>'."),
            (
                "return [None] * len(requests)",
                False,
                of_model + "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'NoneType'>'.",
            ),
            ("for r in requests: r.get_response_sender()", False, "the model dropped the request without ending it"),
            ("return None", True, "the model dropped the request without ending it"),
        ):
            with self.subTest(body=body, decoupled=decoupled), Worker(executing(body), decoupled=decoupled) as worker:
                worker.start()
                worker.submit({}, {})
                ended = []
                ran = False
                while len(ended) < 2 or not ran:
                    header, _ = worker.receive("ran", "respond")
                    if header["t"] == "ran":
                        ran = True
                    else:
                        self.assertTrue(header["response"]["error"][1].startswith(text), header)
                        self.assertTrue(header["final"])
                        ended.append(header["request"])
                self.assertEqual(sorted(ended), [0, 1])

    def test_a_request_that_has_its_response_does_not_fail(self):
        source = executing(OK + "sender = request.get_response_sender(); sender.send(ok); sender.send(ok)")
        with Worker(source) as worker:
            worker.start()
            worker.submit({}, {})
            self.assertNotIn("final", worker.receive("respond")[0])
            ended, _ = worker.receive("respond")
            self.assertEqual((ended["request"], ended["final"], ended.get("response")), (0, True, None))
            self.assertIn("cannot send more than one response", worker.receive("ran")[0]["error"][1])

    def test_a_response_that_was_sent_is_not_sent_again(self):
        source = executing(OK + """
request.get_response_sender().send(ok, flags=1)
return [ok]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            self.assertTrue(worker.responded()["final"])
            self.assertIn("cannot send more than one response", worker.ran()["error"][1])

    def test_a_decoupled_model_returns_nothing(self):
        with Worker(executing(OK + "return [ok]"), decoupled=True) as worker:
            worker.start()
            self.assertIn(
                "Python model 'model_0_0' is using the decoupled mode and the execute function must return None.",
                worker.execute({})["error"][1],
            )

    def test_threads_send_while_the_next_batch_is_executed(self):
        source = executing("""
def send(sender, number):
    for i in range(100):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("O", np.full(2000, i))]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
for number, request in enumerate(requests):
    threading.Thread(target=send, args=(request.get_response_sender(), number)).start()
        """)
        with Worker(source, decoupled=True) as worker:
            worker.start()
            batches = [worker.submit({}, {}), worker.submit({})]
            next_value = {(batches[0], 0): 0, (batches[0], 1): 0, (batches[1], 0): 0}
            ran = 0
            while next_value or ran < 2:
                header, body = worker.receive("ran", "respond")
                if header["t"] == "ran":
                    ran += 1
                    continue
                key = (header["batch"], header["request"])
                if header.get("final"):
                    self.assertEqual(next_value.pop(key), 100)
                    continue
                worker.decode(header["response"], body, 0)
                np.testing.assert_array_equal(header["response"]["outs"]["O"], np.full(2000, next_value[key]))
                next_value[key] += 1
                worker.send({"t": "room", "batch": key[0], "request": key[1], "n": 1})
            # Their memory was used again and again.
            self.assertLess(len(worker.maps), 20)

    def test_a_sender_without_room_waits(self):
        source = executing("""
sender = request.get_response_sender()
for i in range(40):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([i]))]))
    print(i, flush=True)
sender.send(flags=1)
        """)
        with Worker(source, decoupled=True) as worker:
            worker.start()
            number = worker.submit({})
            for _ in range(32):
                worker.responded()
            worker.send({"t": "ready", "id": 1})  # it is read while the sender waits, and left for later
            worker.send({"t": "room", "batch": 99, "request": 0, "n": 100})
            worker.send({"t": "room", "batch": number, "request": 0, "n": 1})
            self.assertEqual(worker.responded()["response"]["outs"]["O"][0], 32)
            worker.send({"t": "room", "batch": number, "request": 0, "n": 7})
            for _ in range(7):
                worker.responded()
            self.assertTrue(worker.responded()["final"])
            worker.ran()

    def test_a_canceled_request_is_known_while_the_model_computes(self):
        source = executing("""
sender = request.get_response_sender()
sender.send(pb_utils.InferenceResponse([]))
while not request.is_cancelled():
    pass
assert sender.is_cancelled() and not requests[1].is_cancelled()
for i in range(100):  # nobody waits for these, and so they need no room
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("O", np.ones(1))]))
sender.send(flags=1)
requests[1].get_response_sender().send(flags=1)
        """)
        with Worker(source, decoupled=True) as worker:
            worker.start()
            number = worker.submit({}, {})
            worker.responded()
            worker.send({"t": "cancel", "batch": 77, "requests": [0]})
            worker.send({"t": "cancel", "batch": number, "requests": [0]})
            for request in (0, 1):
                last = worker.responded()
                self.assertEqual((last["request"], "response" in last, last["final"]), (request, False, True))
            worker.ran()


class TestAgain(unittest.TestCase):
    def test_a_request_is_executed_again(self):
        source = executing("""
if len(requests) == 1:
    return [pb_utils.InferenceResponse([])]
request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
return [None, pb_utils.InferenceResponse([])]
        """)
        with Worker(source) as worker:
            worker.start()
            ran = worker.execute({}, {})
            self.assertEqual((ran["again"], ran["responses"][0][0]), ([0], 1))
            self.assertEqual(worker.execute({})["responses"][0][0], 0)

    def test_a_decoupled_request_is_executed_again_after_it_has_sent(self):
        source = executing("""
request.get_response_sender().send(pb_utils.InferenceResponse([]))
request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        """)
        with Worker(source, decoupled=True) as worker:
            worker.start()
            worker.submit({})
            self.assertNotIn("final", worker.responded())
            self.assertEqual(worker.ran()["again"], [0])

    def test_a_response_of_a_request_that_is_executed_again_is_refused(self):
        source = executing("""
request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
return [pb_utils.InferenceResponse([])]
        """)
        with Worker(source) as worker:
            worker.start()
            self.assertIn("Expected a None object in the execute function return list for reschduled request", worker.execute({})["error"][1])


ASYNC = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.gate = None
            self.ready = 0
        async def is_ready(self):
            await asyncio.sleep(0)
            return True
        async def execute(self, requests):
            %s
        def finalize(self):
            print("finalized")
"""


class TestCoroutines(unittest.TestCase):
    def test_a_coroutine_is_executed_and_asked_and_finalized(self):
        with Worker(ASYNC % "await asyncio.sleep(0); return [pb_utils.InferenceResponse([]) for _ in requests]") as worker:
            self.assertEqual(worker.start(), {"t": "started", "asks": True, "async": True})
            self.assertEqual(len(worker.execute({}, {})["responses"]), 2)
            worker.send({"t": "ready", "id": 5})
            self.assertEqual(worker.receive("reply")[0], {"t": "reply", "id": 5, "value": True})
            self.assertEqual(worker.finalize(), 0)
            self.assertIn("finalized", worker.printed())

    def test_decoupled_executions_overlap(self):
        source = ASYNC % """
            sender = requests[0].get_response_sender()
            if self.gate is None:
                self.gate = asyncio.Event()
                await self.gate.wait()
            else:
                self.gate.set()
            sender.send(pb_utils.InferenceResponse([]), flags=1)
        """
        with Worker(source, decoupled=True) as worker:
            worker.start()
            first = worker.submit({})
            worker.ran()  # the first waits for the second
            second = worker.submit({})
            ended = []
            while len(ended) < 2:
                header, _ = worker.receive("ran", "respond")
                if header["t"] == "respond":
                    ended.append(header["batch"])
            self.assertEqual(sorted(ended), [first, second])

    def test_an_exception_ends_what_has_no_end(self):
        for decoupled in (False, True):
            with self.subTest(decoupled=decoupled):
                with Worker(ASYNC % "await asyncio.sleep(0); raise ValueError('sorry')", decoupled=decoupled) as worker:
                    worker.start()
                    ran = worker.execute({})
                    error = worker.responded()["response"]["error"] if decoupled else ran["error"]
                    self.assertIn("message: ValueError: sorry", error[1])
                    worker.finalize()

    def test_the_socket_is_read_when_frames_come_in_pieces_and_in_one(self):
        with Worker(ASYNC % "return [pb_utils.InferenceResponse([]) for _ in requests]", decoupled=False) as worker:
            worker.start()
            for _ in range(50):
                worker.submit({"params": {"text": "x" * 3000}})
            for _ in range(50):
                worker.ran()


class TestReadiness(unittest.TestCase):
    def test_a_model_has_its_say(self):
        cases = {"return True": True, "return False": False, "return 3": "is_ready() must return a boolean value", "raise ValueError('no')": "ValueError: no"}
        for line, expected in cases.items():
            for kind in ("def", "async def"):
                source = executing("return None") + "    %s is_ready(self):\n        %s\n" % (kind, line)
                with self.subTest(line=line, kind=kind), Worker(source) as worker:
                    self.assertTrue(worker.start()["asks"])
                    worker.send({"t": "ready", "id": 3})
                    reply = worker.receive("reply")[0]
                    if isinstance(expected, bool):
                        self.assertEqual(reply["value"], expected)
                    else:
                        self.assertIn(expected, reply["error"][1])


if __name__ == "__main__":
    unittest.main()
