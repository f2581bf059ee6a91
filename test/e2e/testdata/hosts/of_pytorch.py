"""Models in TorchScript and as programs, of each way to name inputs and outputs."""

from typing import Dict, List, Tuple

import numpy as np
import torch
from common import model, parameter, refused, request, tensors

BACKEND = 'platform: "pytorch_libtorch"\n'
FP32, BOTH = ("FP32", "[ 4 ]"), tensors("input", ("INPUT__1", "FP32", "[ 4 ]"), ("INPUT__0", "FP32", "[ 4 ]"))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(4, 16)
        self.second = torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Less(torch.nn.Module):
    def forward(self, minuend, subtrahend) -> Tuple[torch.Tensor, torch.Tensor]:
        return minuend - subtrahend, (minuend > subtrahend).long()


class ByName(torch.nn.Module):
    def forward(self, given: Dict[str, torch.Tensor]):
        return given["a"] - given["b"]


class Upper(torch.nn.Module):
    def forward(self, words: List[str]) -> List[str]:
        return [word.upper() for word in words]


class Scalar(torch.nn.Module):
    def forward(self, x):
        return x.sum()


def save(name, module, config):
    torch.jit.script(module).save(model(name, BACKEND + config) + "/model.pt")


def programs():
    """Write exported and compiled programs, if this torch has them."""
    given = np.random.default_rng(3).random((3, 4), np.float32)
    mlp, example = Mlp().eval(), (torch.from_numpy(given),)
    config = "max_batch_size: 8\ndynamic_batching { }\n" + tensors("input", ("INPUT__0", *FP32)) + tensors("output", ("OUTPUT__0", "FP32", "[ 3 ]"))
    if not hasattr(getattr(torch, "export", None), "load"):
        with open(model("exported", config) + "/model.pt2", "w") as file:
            file.write("from a newer torch")
        refused("exported", "'model.pt2' needs torch.export, which torch has from 2.1 on")
        return
    with open(model("not_exported", config) + "/model.pt2", "w") as file:
        file.write("no program")
    refused("not_exported", "failed to load model 'not_exported': ")
    rows = torch.export.Dim("rows", max=8)
    program = torch.export.export(mlp, example, dynamic_shapes={"x": {0: rows}})
    torch.export.save(program, model("exported", config) + "/model.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=model("compiled", config) + "/model.pt2")
    for name in ("exported", "compiled"):
        for rows in (1, 2, 3, 8):
            given = np.random.default_rng(rows).random((rows, 4), np.float32)
            with torch.no_grad():
                request(name, {"INPUT__0": given}, {"OUTPUT__0": mlp(torch.from_numpy(given)).numpy()})
    a, b = np.arange(4, dtype=np.float32), np.full(4, 1.5, np.float32)
    two = tensors("output", ("OUTPUT__1", "INT64", "[ 4 ]"), ("OUTPUT__0", *FP32))
    named = tensors("input", ("subtrahend", *FP32), ("minuend", *FP32)) + two
    exported = torch.export.export(Less(), (torch.from_numpy(a), torch.from_numpy(b)))
    torch.export.save(exported, model("exported_arguments", named) + "/model.pt2")
    request("exported_arguments", {"subtrahend": b, "minuend": a}, {"OUTPUT__0": a - b, "OUTPUT__1": (a > b).astype(np.int64)})


def main():
    programs()
    mlp = Mlp()
    batching = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n"
    settings = "".join(
        parameter(key, value)
        for key, value in (
            ("INFERENCE_MODE", "true"), ("DISABLE_OPTIMIZED_EXECUTION", "true"), ("INTRA_OP_THREAD_COUNT", "1"), ("ENABLE_WEIGHT_SHARING", "true"),
        )
    )  # fmt: skip
    x, y = (("x", *FP32), ("y", "FP32", "[ 3 ]"))
    save("mlp", mlp, batching + settings + tensors("input", x) + tensors("output", y))
    for rows in (1, 2, 3, 1, 5, 8, 2, 1):
        given = np.random.default_rng(rows).random((rows, 4), np.float32)
        with torch.no_grad():
            request("mlp", {"x": given}, {"y": mlp(torch.from_numpy(given)).numpy()})

    a, b = np.arange(4, dtype=np.float32), np.full(4, 1.5, np.float32)
    less, more = a - b, (a > b).astype(np.int64)
    two = tensors("output", ("OUTPUT__1", "INT64", "[ 4 ]"), ("OUTPUT__0", *FP32))
    save("index", Less(), BOTH + two)
    request("index", {"INPUT__0": a, "INPUT__1": b}, {"OUTPUT__0": less, "OUTPUT__1": more})
    request("index", {"INPUT__1": b, "INPUT__0": a}, {"OUTPUT__1": more, "OUTPUT__0": less})
    save("arguments", Less(), tensors("input", ("subtrahend", *FP32), ("minuend", *FP32)) + two)
    request("arguments", {"subtrahend": b, "minuend": a}, {"OUTPUT__0": less, "OUTPUT__1": more})
    save("order", Less(), tensors("input", ("from", *FP32), ("take", *FP32)) + tensors("output", ("less", *FP32), ("more", "INT64", "[ 4 ]")))
    request("order", {"from": a, "take": b}, {"less": less, "more": more})
    save("dictionary", ByName(), tensors("input", ("b", *FP32), ("a", *FP32)) + tensors("output", ("less", *FP32)))
    request("dictionary", {"a": a, "b": b}, {"less": less})
    save("words", Upper(), tensors("input", ("words", "STRING", "[ -1 ]")) + tensors("output", ("upper", "STRING", "[ -1 ]")))
    request("words", {"words": np.array([b"one", b"two"], np.object_)}, {"upper": np.array([b"ONE", b"TWO"], np.object_)})
    save("scalar", Scalar(), tensors("input", ("x", *FP32)) + tensors("output", ("sum", "FP32", "[ 1 ]")))
    request("scalar", {"x": a}, {"sum": np.array([a.sum()])})

    save("type", Less(), BOTH + tensors("output", ("OUTPUT__0", "INT32", "[ 4 ]")))
    request("type", {"INPUT__0": a, "INPUT__1": b}, error="configuration expects datatype TYPE_INT32 for output 'OUTPUT__0'")
    save("missing", Less(), BOTH + tensors("output", ("OUTPUT__2", *FP32)))
    request("missing", {"INPUT__0": a, "INPUT__1": b}, error="refers to an output index which doesn't exist. This model has 2 outputs")
    save("fails", Less(), tensors("input", ("INPUT__0", "FP32", "[ 4 ]"), ("INPUT__1", "FP32", "[ -1 ]")) + two)
    request("fails", {"INPUT__0": a, "INPUT__1": np.ones(3, np.float32)}, error="PyTorch execute failure: ")

    save("count", Less(), tensors("input", x) + tensors("output", y))
    refused("count", "configuration expects 1 inputs, model provides 2")
    with open(model("broken", BACKEND + tensors("input", x) + tensors("output", y)) + "/model.pt", "w") as file:
        file.write("no model")
    refused("broken", "failed to load model 'broken': ")
    save("unlisted", mlp, "")
    refused("unlisted", "the configuration has no 'input'")


main()
