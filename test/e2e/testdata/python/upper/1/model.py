import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.upper(r.inputs()[0].as_numpy()))]) for r in requests]

    def upper(self, texts):
        return np.array([text.upper() for text in texts], np.object_)
