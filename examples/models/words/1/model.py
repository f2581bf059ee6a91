"""The words of a text, one response for each, as a language model gives its tokens."""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        # A thread for each: send() waits for a client that does not read, and should hold up no other.
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()[0]
            pause = json.loads(request.parameters()).get("pause_ms", 0) / 1000
            threading.Thread(target=self.stream, args=(request.get_response_sender(), text.split(), pause)).start()

    def stream(self, sender, words, pause):
        for word in words:
            if sender.is_cancelled():  # the client is gone: nobody reads the rest
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([word], np.object_))]))
            time.sleep(pause)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
