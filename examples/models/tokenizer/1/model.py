"""Texts as the model `language` takes them: their first bytes, and how many these are."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.most = int(parameters["bytes"]["string_value"])

    def execute(self, requests):
        return [self.tokenize(request) for request in requests]

    def tokenize(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        rows = [np.frombuffer(text, np.uint8)[: self.most] for text in texts.flat]
        if not all(row.size for row in rows):
            error = pb_utils.TritonError("a text is empty", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        length = np.array([[row.size] for row in rows], np.int32)
        text = np.zeros((len(rows), length.max()), np.uint8)
        for position, row in enumerate(rows):
            text[position, : row.size] = row
        return pb_utils.InferenceResponse([pb_utils.Tensor("text", text), pb_utils.Tensor("length", length)])
