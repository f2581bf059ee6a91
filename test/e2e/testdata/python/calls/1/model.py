import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


def add_sub(first, second):
    tensors = [pb_utils.Tensor(name, np.full((1, 1), n, np.float32)) for name, n in (("INPUT0", first), ("INPUT1", second))]
    return pb_utils.InferenceRequest(model_name="add_sub", requested_output_names=["OUTPUT0"], inputs=tensors)


def asking(model, name, value, wanted="OUT"):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=[wanted], inputs=[pb_utils.Tensor(name, value)])


def number(response, name="OUT"):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, name).as_numpy().flatten().astype(np.int32)


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        how = request.inputs()[0].as_numpy()[0].decode()
        numbers, error = await getattr(self, how.split()[0])(*how.split()[1:])
        if error is not None:
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(numbers, np.int32))])

    async def one(self):
        return number(add_sub(3, 4).exec(), "OUTPUT0"), None

    async def three(self):
        responses = await asyncio.gather(*(add_sub(n, 10).async_exec() for n in (1, 2, 3)))
        return np.concatenate([number(r, "OUTPUT0") for r in responses]), None

    async def several(self):
        responses = asking("repeat", "IN", np.array([5, 6, 7], np.int32)).exec(decoupled=True)
        return np.concatenate([number(r) for r in responses if r.output_tensors()]), None

    async def several_at_once(self):
        responses = await asking("repeat", "IN", np.array([8, 9], np.int32)).async_exec(decoupled=True)
        return np.concatenate([number(r) for r in responses if r.output_tensors()]), None

    async def asks(self, model, *how):
        """Has a model do something, and gives its answer or its error as they came."""
        response = asking(model, "HOW", np.array([" ".join(how).encode()], np.object_)).exec()
        return (None, response.error()) if response.has_error() else (number(response), None)
