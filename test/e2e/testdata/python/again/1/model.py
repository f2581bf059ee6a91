import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Runs each request as often as its input says, and answers with how often it ran."""

    def initialize(self, args):
        self.ran = {}

    def execute(self, requests):
        return [self.step(request) for request in requests]

    def step(self, request):
        wanted, sequence = request.inputs()[0].as_numpy(), request.correlation_id()
        ran = self.ran[sequence] = self.ran.get(sequence, 0) + 1
        if ran < wanted[0, 0]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", wanted * 0 + self.ran.pop(sequence))])
