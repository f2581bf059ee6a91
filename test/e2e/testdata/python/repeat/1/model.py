import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            numbers = request.inputs()[0].as_numpy()
            for i in range(len(numbers)):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numbers[i : i + 1])]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
