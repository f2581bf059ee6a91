"""The stub's life: start, batches, errors, end."""

import os
import signal
import time
import unittest

import numpy as np

from .fake_worker import Died, Worker

ADD_SUB = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_name"]
        def execute(self, requests):
            responses = []
            for request in requests:
                a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
                responses.append(pb_utils.InferenceResponse(output_tensors=[
                    pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]))
            return responses
        def finalize(self):
            print("finalized", self.name)
"""

ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", t.as_numpy()) for t in r.inputs()]) for r in requests]
"""


def executing(lines):
    """Return a model whose execute has these lines; request is the first."""
    body = "".join("            " + line + "\n" for line in lines.strip("\n").split("\n"))
    return (
        "import os, sys, threading, time\nimport numpy as np\nimport triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n    def execute(self, requests):\n        if True:\n            request = requests[0]\n" + body
    )


class TestLife(unittest.TestCase):
    def test_a_model_is_started_executed_and_finalized(self):
        a, b = np.arange(16, dtype=np.float32), np.ones(16, np.float32)
        with Worker(ADD_SUB) as worker:
            self.assertEqual(worker.start(), {"t": "started"})
            for _ in range(3):
                ran = worker.execute({"ins": {"INPUT0": a, "INPUT1": b}}, {"ins": {"INPUT0": b, "INPUT1": a}})
                self.assertEqual([entry[0] for entry in ran["responses"]], [0, 1])
                self.assertTrue(all(entry[2] for entry in ran["responses"]))
                np.testing.assert_array_equal(ran["responses"][0][1]["outs"]["OUTPUT0"], a + b)
                np.testing.assert_array_equal(ran["responses"][1][1]["outs"]["OUTPUT1"], b - a)
            self.assertEqual(worker.finalize(), 0)
            self.assertIn("finalized model", worker.printed())

    def test_only_outputs_that_were_asked_for_are_sent(self):
        a = np.arange(4, dtype=np.int32)
        with Worker(ADD_SUB) as worker:
            worker.start()
            ran = worker.execute({"ins": {"INPUT0": a, "INPUT1": a}, "outs": ["OUTPUT1"]})
            self.assertEqual(list(ran["responses"][0][1]["outs"]), ["OUTPUT1"])

    def test_every_datatype_comes_back_as_it_went(self):
        arrays = [np.array([[0, 1], [2, 3]]).astype(kind) for kind in "? u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8".split()]
        with Worker(ECHO) as worker:
            worker.start()
            for array in arrays + [np.zeros((0, 3), np.float32), np.float64(3).reshape(())]:
                # A byte before it leaves the next tensor unaligned.
                odd = np.zeros(1, np.int8)
                ran = worker.execute({"ins": {"odd": odd}}, {"ins": {"x": array}})
                back = ran["responses"][1][1]["outs"]["OUT"]
                self.assertEqual((back.dtype, back.shape), (array.dtype, array.shape))
                np.testing.assert_array_equal(back, array)
            ran = worker.execute({"ins": {"x": [b"", b"abc", b"\xff\x00"]}})
            self.assertEqual(ran["responses"][0][1]["outs"]["OUT"], b"\0\0\0\0\3\0\0\0abc\2\0\0\0\xff\0")

    def test_a_socket_that_closes_ends_the_process(self):
        worker = Worker(ADD_SUB)
        with worker:
            worker.start()
        self.assertEqual(worker.process.returncode, 0)

    def test_what_is_no_message_ends_the_process(self):
        for header in ({"t": "nonsense"}, {"t": "batch"}, {}):
            with self.subTest(header=header), Worker(ADD_SUB) as worker:
                worker.start()
                worker.send(header)
                with self.assertRaises(Died):
                    worker.frame()
                self.assertNotEqual(worker.process.wait(60), 0)

    def test_a_model_imports_what_lies_beside_it(self):
        source = """
            import beside
            from . import relative
            from .relative import number
            class TritonPythonModel:
                def initialize(self, args):
                    print(__name__, beside.__name__, relative.__name__, number)
                def execute(self, requests): pass
        """
        with Worker(source) as worker:
            worker.write("beside.py", "")
            worker.write("relative.py", "number = 7")
            self.assertEqual(worker.start()["t"], "started")
            worker.finalize()
            self.assertIn("1.model beside 1.relative 7", worker.printed())

    def test_initialize_may_choose_execute(self):
        with Worker("class TritonPythonModel:\n  def initialize(self, args): self.execute = lambda requests: []") as worker:
            self.assertEqual(worker.start()["t"], "started")


class TestFailures(unittest.TestCase):
    def test_what_keeps_a_model_from_starting(self):
        cases = {
            "class TritonPythonModel: pass": "does not implement `execute` method",
            "x = 1": "has no attribute 'TritonPythonModel'",
            "x = ": "SyntaxError",
            "raise SystemExit(3)": "SystemExit: 3",
            "class TritonPythonModel:\n  def initialize(self, a): raise ValueError('sorry')\n  def execute(self, r): pass": "ValueError: sorry",
        }
        for source, text in cases.items():
            with self.subTest(text), Worker(source) as worker:
                failed = worker.start()
                self.assertEqual(failed["t"], "failed")
                self.assertIn(text, failed["text"])
                place = r'  File ".*/model\.py"' if "raise" in source or text == "SyntaxError" else "  File"
                self.assertRegex(failed["traceback"], r"\A(Traceback .*\n)?" + place)

    def test_what_execute_may_not_do(self):
        ok = "pb_utils.InferenceResponse([])"
        cases = {
            "raise ValueError('bad value')": "ValueError: bad value\n\nAt:\n  ",
            "raise pb_utils.TritonModelException('in its words')": "TritonModelException: in its words",
            "raise SystemExit(0)": "SystemExit: 0",
            "raise KeyboardInterrupt()": "KeyboardInterrupt: <EMPTY MESSAGE>\n",
            "return " + ok: "Expected a list in the execute return, found type '<class 'c_python_backend_utils.InferenceResponse'>'.",
            "return [%s, %s]" % (ok, ok): "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:2",
            "return [3]": "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'.",
        }
        for line, text in cases.items():
            with self.subTest(line), Worker(executing(line)) as worker:
                worker.start()
                ran = worker.execute({})
                code, message = ran["error"]
                self.assertEqual(code, "INTERNAL")
                self.assertIn("Failed to process the request(s) for model 'model_0_0', message: ", message)
                self.assertIn(text, message)
                place = r'  File ".*/model\.py"' if line.startswith("raise") else "  File"
                self.assertRegex(ran["traceback"], r"\ATraceback .*\n" + place)
                self.assertNotIn("responses", ran)
                self.assertIn(text, worker.execute({})["error"][1])  # it goes on

    def test_an_error_of_one_response_keeps_its_code(self):
        source = executing("""
error = pb_utils.TritonError("no such thing", pb_utils.TritonError.NOT_FOUND)
return [pb_utils.InferenceResponse(error=error), pb_utils.InferenceResponse([pb_utils.Tensor("O", np.zeros(1))])]
        """)
        with Worker(source) as worker:
            worker.start()
            responses = worker.execute({}, {})["responses"]
            self.assertEqual(responses[0][1]["error"], ["NOT_FOUND", "no such thing"])
            self.assertEqual(list(responses[1][1]["outs"]), ["O"])

    def test_a_model_may_print_and_close_what_it_likes(self):
        source = executing("""
os.write(1, b"\\xff\\x00garbage")
print("x" * 100000)
sys.stdout.close(); os.close(1); os.close(2); os.close(0)
return [pb_utils.InferenceResponse([])]
        """)
        with Worker(source) as worker:
            worker.start()
            self.assertEqual(len(worker.execute({})["responses"]), 1)

    def test_a_forked_process_leaves_the_socket_alone_and_ends_with_the_stub(self):
        source = executing("""
child = os.fork()
if not child:
    pb_utils.Logger.log_info("from the child")
    pb_utils.MetricFamily("m", "", pb_utils.MetricFamily.GAUGE).Metric().set(1)
    del requests, request
    signal_that_never_comes = threading.Event().wait()
return [pb_utils.InferenceResponse([pb_utils.Tensor("PID", np.array([child]))])]
        """)
        big = np.zeros(1 << 16, np.float32)
        with Worker(source) as worker:
            worker.start()
            child = int(worker.execute({"ins": {"x": big}})["responses"][0][1]["outs"]["PID"][0])
            self.assertEqual(worker.logged, [])
            os.kill(worker.process.pid, signal.SIGKILL)
            with self.assertRaises(Died):
                worker.receive()
            self.assertTrue(gone(child))


def gone(pid):
    """Wait until a process has ended, be it that nobody has collected it."""
    while True:
        try:
            with open("/proc/%d/stat" % pid) as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.01)


class TestMemory(unittest.TestCase):
    def test_large_tensors_go_both_ways_and_their_memory_comes_back(self):
        big = np.random.default_rng(1).random((300, 400))
        with Worker(ECHO) as worker:
            worker.start()
            for round in range(5):
                back = worker.execute({"ins": {"x": big}}, {"ins": {"x": big + 1}})["responses"]
                np.testing.assert_array_equal(back[0][1]["outs"]["OUT"], big)
                np.testing.assert_array_equal(back[1][1]["outs"]["OUT"], big + 1)
            # What came last is released behind the last answer.
            worker.send({"t": "finalize"})
            worker.receive("finalized")
            self.assertEqual(sorted(worker.released), [(number, 0) for number in range(10)])
            self.assertEqual(len(worker.maps), 2)

    def test_memory_is_given_back_when_the_last_view_is_gone(self):
        source = """
            import triton_python_backend_utils as pb_utils
            class TritonPythonModel:
                kept = None
                def execute(self, requests):
                    self.kept = None
                    self.kept = requests[0].inputs()[0].as_numpy()[3:5, None] if requests[0].inputs() else None
                    return [pb_utils.InferenceResponse([]) for _ in requests]
        """
        with Worker(source) as worker:
            worker.start()
            worker.execute({"ins": {"x": np.zeros(9000)}})
            self.assertEqual(worker.released, [])
            worker.execute({"ins": {"x": np.ones(9000)}})
            worker.execute({})
            worker.finalize()
            self.assertEqual(worker.released, [(0, 0), (1, 0)])

    def test_free_files_above_the_bound_are_dropped(self):
        source = executing('return [pb_utils.InferenceResponse([pb_utils.Tensor("O", np.ones((5 << 20) * (len(r.inputs()) + 1), np.uint8))]) for r in requests]')
        with Worker(source) as worker:
            worker.start()
            worker.execute(*[{}] * 12)
            worker.execute({"ins": {"x": np.zeros(1)}})
            worker.execute({})
            worker.finalize()
            self.assertLess(len(worker.maps), 13)

    def test_a_file_that_could_shrink_is_refused(self):
        with Worker(ECHO) as worker:
            worker.start()
            descriptor = os.memfd_create("test")
            os.ftruncate(descriptor, 1 << 20)
            worker.send({"t": "release", "files": [[7, 1 << 20]]}, b"", (descriptor,))
            os.close(descriptor)
            with self.assertRaises(Died):
                worker.frame()
            self.assertIn("not sealed", worker.printed())


if __name__ == "__main__":
    unittest.main()
