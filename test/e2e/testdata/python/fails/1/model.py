import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        how = request.inputs()[0].as_numpy()[0].decode()
        if how == "raise":
            raise ValueError("told to raise")
        error = pb_utils.TritonError("told to fail", getattr(pb_utils.TritonError, how))
        return pb_utils.InferenceResponse(error=error)
