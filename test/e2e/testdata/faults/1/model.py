import ctypes
import os
import subprocess
import sys
import time

import numpy as np
import triton_python_backend_utils as pb_utils

DIRECTORY = os.environ["FAULTS_DIR"]


class TritonPythonModel:
    """Answers with the number of the request and a process, its own or one that it has begun, after doing what it is told."""

    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        how, number = (tensor.as_numpy() for tensor in request.inputs())
        process = os.getpid()
        if how[0]:
            print(f"told to {how[0].decode()}", file=sys.stderr)
            process = getattr(self, how[0].decode())() or process
        return pb_utils.InferenceResponse([pb_utils.Tensor("N", number), pb_utils.Tensor("PROCESS", np.array([process], np.int32))])

    def leave(self):
        os._exit(3)

    def crash(self):
        ctypes.string_at(0)

    def allocate(self):
        np.ones(1 << 40, np.uint8)

    def babble(self):
        os.write(1, b"\xff\x00 no text \xfe" * 10_000)

    def interrupt(self):
        os.write(3, b"this is no message" * 10)

    def hang(self):
        self.leave_file("hangs")
        while True:
            time.sleep(3600)

    def complain(self):
        raise ValueError("told to complain")

    def fork(self):
        # The child goes on with the request, as if it were the model.
        return os.fork()

    def start(self):
        # A process of its own: unlike one that is forked it does not die with the model's.
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid

    def wait(self):
        self.leave_file("waits")
        while not os.path.exists(os.path.join(DIRECTORY, "go")):
            time.sleep(0.01)

    def finalize(self):
        self.leave_file(f"finalized-{self.name}-{os.getpid()}")

    def leave_file(self, name):
        open(os.path.join(DIRECTORY, name), "w").close()
