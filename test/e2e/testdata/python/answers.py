"""Models that show what reaches them, and that respond as their input says."""

import json

import numpy as np
import triton_python_backend_utils as pb


def text(name, value):
    return pb.Tensor(name, np.array([value.encode()], dtype=np.object_))


class TritonPythonModel:
    def initialize(self, args):
        self.execute = getattr(self, args["model_name"])

    def shown(self, requests):
        """Respond with all that a request says of itself."""
        responses = []
        for r in requests:
            shown = {
                "id": r.request_id(),
                "correlation_id": r.correlation_id(),
                "flags": r.flags(),
                "timeout": r.timeout(),
                "outputs": sorted(r.requested_output_names()),
                "parameters": json.loads(r.parameters()) if r.parameters() else None,
            }
            responses.append(pb.InferenceResponse([text("OUT", json.dumps(shown, sort_keys=True))]))
        return responses

    def failing(self, requests):
        """Fail in the way that the input names."""
        responses = []
        for r in requests:
            how = pb.get_input_tensor_by_name(r, "IN").as_numpy().flat[0].decode()
            both = [pb.Tensor(n, np.array([[how.encode()]], dtype=np.object_)) for n in ("OUT", "SIDE")]
            if how.startswith("code "):
                error = pb.TritonError("no: " + how, getattr(pb.TritonError, how[5:]))
                responses.append(pb.InferenceResponse(error=error))
            elif how == "plain":
                responses.append(pb.InferenceResponse(error=pb.TritonError("plainly no")))
            elif how == "empty text":
                responses.append(pb.InferenceResponse(error=pb.TritonError("")))
            elif how == "one output":
                responses.append(pb.InferenceResponse(both[:1]))
            elif how == "no output":
                responses.append(pb.InferenceResponse([]))
            elif how == "parameters":
                responses.append(pb.InferenceResponse(both, parameters={"b": True, "i": 7, "s": "text", "n": -1}))
            elif how == "unknown output":
                responses.append(pb.InferenceResponse([*both, text("NONE", "x")]))
            else:
                responses.append(pb.InferenceResponse(both))
        return responses

    def several(self, requests):
        """Respond as many times as the input says; a negative number ends in an error."""
        for r in requests:
            n = int(pb.get_input_tensor_by_name(r, "IN").as_numpy()[0])
            sender = r.get_response_sender()
            for i in range(abs(n)):
                last = n == i + 1
                response = pb.InferenceResponse([pb.Tensor("OUT", np.array([i], dtype=np.int32))])
                sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last and n > 1 else 0)
            if n < 0:
                sender.send(pb.InferenceResponse(error=pb.TritonError("no more")))
            if n <= 1:
                sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
