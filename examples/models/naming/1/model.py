"""The names of the languages that `language` finds most probable."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        with open(os.path.join(pb_utils.get_model_dir(), "labels.txt"), "rb") as file:
            self.labels = np.array(file.read().split(), np.object_)

    def execute(self, requests):
        return [self.name(request) for request in requests]

    def name(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "probabilities").as_numpy()
        best = rows.argmax(axis=1)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("LANGUAGE", self.labels[best].reshape(-1, 1)),
                pb_utils.Tensor("CONFIDENCE", rows[np.arange(len(rows)), best].reshape(-1, 1)),
            ]
        )
