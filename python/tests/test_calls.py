"""Calls to other models, metrics, and control of models."""

import unittest

import numpy as np

from .fake_worker import Worker
from .test_responses import ASYNC
from .test_stub import executing

ASK = """
def ask(model, value, **more):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["O"], inputs=[pb_utils.Tensor("I", value)], **more)
"""


def result(worker, number, value=None, final=True, error=None):
    """Send a result, of one output unless it is an error or empty."""
    header = {"t": "result", "call": number}
    body = b""
    if error:
        header["response"] = {"error": error}
    elif value is not None:
        files, descriptors = [], []
        entry, body = worker._encode("O", value, files, descriptors)
        header["response"] = {"outs": [entry]}
        if files:
            header["files"] = files
        worker.send(dict(header, final=final), body, tuple(descriptors))
        return
    worker.send(dict(header, final=final), body)


class TestCalls(unittest.TestCase):
    def test_a_call_has_all_of_its_request_and_gives_its_response(self):
        source = executing(ASK + """
response = ask("other", np.arange(3000), request_id="r", correlation_id=7, flags=1, timeout=5000, model_version=3, trace=request.trace(),
               preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU), parameters={"a": 1, "b": "x"}).exec()
assert not response.has_error(), response.error().message()
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_output_tensor_by_name(response, "O").as_numpy())])]
        """)
        with Worker(source) as worker:
            worker.start()
            number = worker.submit({"trace": "00-1-2-01"})
            call, body = worker.receive("call")
            worker.decode({"outs": call["ins"]}, body, 0)
            call.pop("ins"), call.pop("files")
            self.assertEqual(
                call,
                {
                    "t": "call", "call": 1, "batch": number, "model": "other", "version": "3", "id": "r", "corr": 7, "flags": 1,
                    "timeout": 5000, "trace": "00-1-2-01", "memory": "CPU", "params": {"a": 1, "b": "x"}, "outs": ["O"],
                },
            )  # fmt: skip
            result(worker, 1, np.arange(5000))
            np.testing.assert_array_equal(worker.ran()["responses"][0][1]["outs"]["OUT"], np.arange(5000))

    def test_the_error_of_a_call_is_its_response(self):
        source = executing(ASK + """
error = ask("other", np.zeros(1)).exec().error()
return [pb_utils.InferenceResponse(error=error)]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            worker.receive("call")
            result(worker, 1, error=["NOT_FOUND", "no such model"])
            self.assertEqual(worker.ran()["responses"][0][1]["error"], ["NOT_FOUND", "no such model"])

    def test_responses_of_a_decoupled_call_are_iterated(self):
        source = executing(ASK + """
got = [len(r.output_tensors()) for r in ask("other", np.zeros(1)).exec(decoupled=True)]
canceled = ask("other", np.zeros(1)).exec(decoupled=True)
next(canceled)
canceled.cancel()
canceled.cancel()
last = next(canceled).error().code() == pb_utils.TritonError.CANCELLED
rest = list(canceled)
dropped = ask("other", np.zeros(1)).exec(decoupled=True)
del dropped
return [pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array(got + [last, len(rest)]))])]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            self.assertTrue(worker.receive("call")[0]["decoupled"])
            result(worker, 1, np.zeros(2), final=False)
            result(worker, 1, np.zeros(2), final=False)
            result(worker, 1)
            worker.receive("call")
            result(worker, 2, np.zeros(2), final=False)
            worker.receive("hang_up", "call")
            result(worker, 2, np.zeros(9000), final=False)
            result(worker, 2, np.zeros(9000))
            while worker.frame()[0] != {"t": "hang_up", "call": 3}:
                pass
            np.testing.assert_array_equal(worker.ran()["responses"][0][1]["outs"]["N"], [1, 1, 0, 1, 0])
            worker.finalize()
            self.assertEqual(len(worker.released), 2)  # what came for nobody

    def test_the_responses_of_a_call_are_iterated_again_after_their_end(self):
        source = executing(ASK + """
responses = ask("other", np.zeros(1)).exec(decoupled=True)
value = lambda response: response.output_tensors()[0].as_numpy()[0]
got = [value(next(responses))]
got += map(value, responses)
ended = next(responses, None) is None
got += map(value, responses)
for response in responses:
    break  # it goes on from here
got += map(value, responses)
return [pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array(got + [ended]))])]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            worker.receive("call")
            for value in (1, 2):
                result(worker, 1, np.full(1, value), final=False)
            result(worker, 1, np.full(1, 3))
            np.testing.assert_array_equal(worker.ran()["responses"][0][1]["outs"]["N"], [1, 2, 3, 1, 2, 3, 2, 3, 1])

    def test_a_forked_process_is_told_that_it_cannot_call(self):
        source = executing(ASK + """
def refused(attempt):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            attempt()
        except pb_utils.TritonModelException as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    return os.fdopen(reader).read()
texts = {
    refused(lambda: ask("other", np.zeros(1)).exec()),
    refused(lambda: pb_utils.load_model("other")),
    refused(lambda: request.get_response_sender().send(pb_utils.InferenceResponse([]))),
}
assert not request.is_cancelled()
return [pb_utils.InferenceResponse(error=pb_utils.TritonError(" | ".join(texts)))]
        """)
        with Worker(source) as worker:
            worker.start()
            ran = worker.execute({})
            self.assertEqual(
                ran["responses"][0][1]["error"][1],
                "This process was forked by the model and has no connection to the server: call and control other models, and send "
                "responses, in the process that executes requests.",
            )

    def test_threads_call_at_once_and_get_their_own(self):
        source = executing(ASK + """
from concurrent.futures import ThreadPoolExecutor
def one(i):
    return int(ask("other", np.array([i])).exec().output_tensors()[0].as_numpy()[0])
with ThreadPoolExecutor(3) as pool:
    got = list(pool.map(one, range(30)))
return [pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array(got))])]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            for _ in range(10):
                waiting = []
                for _ in range(3):
                    call, body = worker.receive("call")
                    response = {"outs": call["ins"]}
                    worker.decode(response, body, 0)
                    waiting.append((call["call"], response["outs"]["I"] * 2))
                for number, value in reversed(waiting):
                    result(worker, number, value)
            np.testing.assert_array_equal(worker.ran()["responses"][0][1]["outs"]["N"], 2 * np.arange(30))

    def test_a_thread_calls_for_a_request_whose_sender_is_open(self):
        source = executing(ASK + """
def run(sender):
    response = ask("other", np.zeros(1)).exec()
    sender.send(response, flags=1)
    del sender
    try:
        ask("other", np.zeros(1)).exec()
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_error(str(error))
threading.Thread(target=run, args=(requests[1].get_response_sender(),)).start()
request.get_response_sender().send(flags=1)
        """)
        with Worker(source, decoupled=True) as worker:
            worker.start()
            number = worker.submit({}, {})
            seen = {}
            while len(seen) < 3:
                header, _ = worker.receive("ran", "respond", "call")
                seen[header["t"]] = header
            if "request" in seen["call"]:
                self.assertEqual(seen["call"]["request"], 1)
            self.assertEqual(seen["call"]["batch"], number)
            result(worker, 1, np.ones(1))
            self.assertEqual((worker.responded()["request"]), 1)
            while not worker.logged:
                header, _ = worker.frame()
                if header["t"] == "log":
                    worker.logged.append(header)
            self.assertEqual(worker.logged[0]["text"], "BLS is only supported during the 'execute' function.")

    def test_coroutines_call_at_once(self):
        source = ASYNC % """
            def ask(i):
                return pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=["O"], inputs=[pb_utils.Tensor("I", np.array([i]))])
            responses = await asyncio.gather(*[ask(i).async_exec() for i in range(3)])
            total = sum(int(r.output_tensors()[0].as_numpy()[0]) for r in responses)
            total += int(ask(3).exec().output_tensors()[0].as_numpy()[0])
            async for r in await ask(4).async_exec(decoupled=True):
                total += sum(int(t.as_numpy()[0]) for t in r.output_tensors())
            for r in await ask(5).async_exec(decoupled=True):
                total += sum(int(t.as_numpy()[0]) for t in r.output_tensors())
            return [pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([total]))])]
        """
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            for _ in range(3):
                worker.receive("call")
            for number in (2, 3, 1):
                result(worker, number, np.array([number]))
            self.assertEqual(worker.receive("call")[0]["call"], 4)
            result(worker, 4, np.array([10]))
            for number in (5, 6):
                worker.receive("call")
                result(worker, number, np.array([100]), final=False)
                result(worker, number, np.array([1000]), final=False)
                result(worker, number)
            self.assertEqual(worker.ran()["responses"][0][1]["outs"]["N"][0], 2216)

    def test_the_first_response_of_a_decoupled_call_is_awaited(self):
        source = ASYNC % """
            def ask(i):
                return pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=["O"], inputs=[pb_utils.Tensor("I", np.array([i]))])
            async def one(i):
                return sum(int(r.output_tensors()[0].as_numpy()[0]) for r in await ask(i).async_exec(decoupled=True))
            order = []
            async def in_turn(i):
                order.append((await one(i)))
            await asyncio.gather(in_turn(0), in_turn(1))
            return [pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array(order))])]
        """
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            for _ in range(2):
                worker.receive("call")
            for number in (2, 1):  # the second is iterated over while the first has nothing
                result(worker, number, np.array([number]), final=False)
                result(worker, number, np.array([10 * number]))
            np.testing.assert_array_equal(worker.ran()["responses"][0][1]["outs"]["N"], [22, 11])

    def test_a_coroutine_may_wait_for_threads_that_call(self):
        source = ASYNC % """
            def ask(i):
                return pb_utils.InferenceRequest(
                    model_name="other", requested_output_names=["O"], inputs=[pb_utils.Tensor("I", np.array([i]))])
            from concurrent.futures import ThreadPoolExecutor
            later = asyncio.ensure_future(ask(0).async_exec())
            await asyncio.sleep(0)
            with ThreadPoolExecutor(3) as pool:
                responses = list(pool.map(lambda i: ask(i).exec(), (1, 2, 3)))
            responses.append(await later)
            total = sum(int(r.output_tensors()[0].as_numpy()[0]) for r in responses)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("N", np.array([total]))])]
        """
        with Worker(source) as worker:
            worker.start()
            for _ in range(3):
                worker.submit({})
                first = None
                for _ in range(4):
                    number = worker.receive("call")[0]["call"]
                    first = first or number
                for number in range(first + 3, first - 1, -1):
                    result(worker, number, np.array([10]))
                self.assertEqual(worker.ran()["responses"][0][1]["outs"]["N"][0], 40)

    def test_the_worker_is_told_of_results_that_were_taken(self):
        source = executing(ASK + """
results = iter(ask("other", np.zeros(1)).exec(decoupled=True))
total = sum(len(next(results).output_tensors()) for _ in range(15))
log = pb_utils.Logger.log_info
log("15")
total += len(next(results).output_tensors())
log("16")
total += sum(len(r.output_tensors()) for r in results)
return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.array([total]))])]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            worker.receive("call")
            for _ in range(20):
                result(worker, 1, np.zeros(1), final=False)
            self.assertEqual(worker.receive("log")[0]["text"], "15")
            self.assertEqual(worker.receive("room")[0], {"t": "room", "call": 1, "n": 16})
            self.assertEqual(worker.receive("log")[0]["text"], "16")
            result(worker, 1, np.zeros(1 << 20), final=False)
            self.assertEqual(worker.receive("room")[0], {"t": "room", "call": 1, "n": 5})
            result(worker, 1)
            self.assertEqual(worker.ran()["responses"][0][1]["outs"]["O"][0], 21)

    def test_an_event_loop_of_the_model_itself_calls(self):
        source = executing(ASK + """
import asyncio
async def both():
    return await asyncio.gather(ask("other", np.zeros(1)).async_exec(), ask("other", np.zeros(1)).async_exec())
a, b = asyncio.run(both())
return [a]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            for _ in range(2):
                worker.receive("call")
            for number in (2, 1):
                result(worker, number, np.full(1, number))
            self.assertEqual(worker.ran()["responses"][0][1]["outs"]["O"][0], 1)

    def test_nothing_is_called_outside_of_execute(self):
        source = """
            import triton_python_backend_utils as pb_utils
            class TritonPythonModel:
                def initialize(self, args):
                    pb_utils.InferenceRequest(model_name="m", inputs=[], requested_output_names=[]).exec()
                def execute(self, requests): pass
        """
        with Worker(source) as worker:
            self.assertIn("BLS is only supported during the 'execute' function.", worker.start()["text"])


class TestMetrics(unittest.TestCase):
    def test_metrics_are_told(self):
        source = executing("""
family = pb_utils.MetricFamily(name="requests", description="all of them", kind=pb_utils.MetricFamily.COUNTER)
metric = family.Metric(labels={"model": "m"})
metric.increment(2)
value = metric.value()
pb_utils.MetricFamily("g", "d", pb_utils.MetricFamily.GAUGE).Metric().set(-3)
pb_utils.MetricFamily("h", "d", pb_utils.MetricFamily.HISTOGRAM).Metric(labels={}, buckets=[1, 2.5]).observe(2)
return [pb_utils.InferenceResponse([pb_utils.Tensor("V", np.array([value]))])]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            expected = [
                {"t": "family", "id": 1, "family": 1, "name": "requests", "text": "all of them", "kind": "COUNTER"},
                {"t": "metric", "id": 2, "family": 1, "metric": 2, "labels": {"model": "m"}},
                {"t": "sample", "metric": 2, "op": "add", "value": 2.0},
                {"t": "value", "id": 3, "metric": 2},
                {"t": "family", "id": 4, "family": 3, "name": "g", "text": "d", "kind": "GAUGE"},
                {"t": "metric", "id": 5, "family": 3, "metric": 4},
                {"t": "sample", "metric": 4, "op": "set", "value": -3.0},
                {"t": "family", "id": 6, "family": 5, "name": "h", "text": "d", "kind": "HISTOGRAM"},
                {"t": "metric", "id": 7, "family": 5, "metric": 6, "buckets": [1.0, 2.5]},
                {"t": "sample", "metric": 6, "op": "observe", "value": 2.0},
            ]
            ends = []

            def told():
                while True:
                    header = worker.receive("family", "metric", "sample", "value", "ran")[0]
                    if header.get("op") != "end":
                        return header
                    ends.append((header["t"], header.get("metric", header.get("family"))))

            for header in expected:
                self.assertEqual(told(), header)
                if "id" in header:
                    worker.send({"t": "reply", "id": header["id"], "value": 2.5 if header["t"] == "value" else True})
            self.assertEqual(told()["t"], "ran")
            worker.submit({})
            self.assertEqual(told()["t"], "family")
            self.assertEqual(sorted(ends), [("family", 1), ("family", 3), ("family", 5), ("sample", 2), ("sample", 4), ("sample", 6)])

    def test_what_the_worker_refuses_is_an_exception(self):
        source = executing("""
texts = []
try:
    pb_utils.MetricFamily("m", "", pb_utils.MetricFamily.GAUGE)
except pb_utils.TritonModelException as error:
    texts.append(str(error))
G = pb_utils.MetricFamily("g", "", pb_utils.MetricFamily.GAUGE)
try:
    G.Metric()
except pb_utils.TritonModelException as error:
    texts.append(str(error))
return [pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(texts)))]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            for reply in {"error": ["INVALID_ARG", "no m"]}, {"value": True}, {"error": ["INVALID_ARG", "no metric"]}:
                worker.send(dict(reply, t="reply", id=worker.receive("family", "metric")[0]["id"]))
            self.assertEqual(worker.receive("family")[0], {"t": "family", "family": 2, "op": "end"})
            text = worker.receive("ran")[0]["responses"][0][1]["error"][1]
            self.assertEqual(eval(text), ["Error when creating MetricFamily: no m", "Error when creating Metric: no metric"])

    def test_what_a_metric_does_not_do(self):
        cases = {
            "C.Metric().increment(-1)": "Failed to increment metric value",
            "C.Metric().set(1)": "Failed to set metric value",
            "G.Metric().observe(1)": "Failed to observe metric value",
            "H.Metric(buckets=[1]).value()": "Failed to get metric value",
            "H.Metric(buckets=[1]).increment(1)": "Failed to increment metric value",
            "H.Metric()": "Failed to create metric. Missing required buckets.",
            "H.Metric(buckets=[2, 1])": "must be finite and ascend",
            "C.Metric(buckets=[1])": "Failed to create metric. Unexpected buckets found.",
            "C.Metric(labels=3)": "Failed to create metric. Labels must be a dictionary.",
            "H.Metric(buckets=3)": "Failed to create metric. Buckets must be a list.",
            "G.Metric().set(float('nan'))": "finite",
        }
        source = executing("""
C, G, H = (pb_utils.MetricFamily("m%d" % int(k), "", k) for k in (pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE, pb_utils.MetricFamily.HISTOGRAM))
errors = []
for line in eval(request.request_id()):
    try:
        eval(line)
        errors.append(line + " did it")
    except pb_utils.TritonModelException as error:
        errors.append(str(error))
return [pb_utils.InferenceResponse(error=pb_utils.TritonError(repr(errors)))]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({"id": repr(list(cases))})
            while True:
                header, _ = worker.frame()
                if header["t"] == "ran":
                    break
                if "id" in header:
                    worker.send({"t": "reply", "id": header["id"], "value": True})
            for text, error in zip(cases.values(), eval(header["responses"][0][1]["error"][1])):
                self.assertIn(text, error)


class TestControl(unittest.TestCase):
    def test_models_are_loaded_unloaded_and_asked_for(self):
        source = executing("""
pb_utils.load_model("a")
pb_utils.load_model(model_name="a", config="{}", files={"file:1/model.py": b"content"})
ready = [pb_utils.is_model_ready("a"), pb_utils.is_model_ready(model_name="a", model_version="1")]
pb_utils.unload_model("a", unload_dependents=True)
try:
    pb_utils.unload_model("a")
except pb_utils.TritonModelException as error:
    text = str(error)
try:
    pb_utils.load_model("a", files={"1/model.py": b""})
except pb_utils.TritonModelException as error:
    text += ", " + str(error)
return [pb_utils.InferenceResponse(error=pb_utils.TritonError("%s %s" % (ready, text)))]
        """)
        with Worker(source) as worker:
            worker.start()
            worker.submit({})
            expected = [
                ({"op": "load", "model": "a"}, b"", {}),
                ({"op": "load", "model": "a", "config": "{}", "contents": [["1/model.py", 7]]}, b"content", {}),
                ({"op": "ready", "model": "a"}, b"", {"value": True}),
                ({"op": "ready", "model": "a", "version": "1"}, b"", {"value": False}),
                ({"op": "unload", "model": "a", "dependents": True}, b"", {}),
                ({"op": "unload", "model": "a"}, b"", {"error": ["UNAVAILABLE", "explicit mode only"]}),
            ]
            for number, (header, body, reply) in enumerate(expected, 1):
                got = worker.receive("control")
                self.assertEqual(got, (dict(header, t="control", id=number), body))
                worker.send(dict(reply, t="reply", id=number))
            self.assertEqual(worker.ran()["responses"][0][1]["error"][1], "[True, False] explicit mode only, unrecognized load parameter '1/model.py'.")


if __name__ == "__main__":
    unittest.main()
