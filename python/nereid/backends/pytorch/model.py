"""The backend pytorch: TorchScript and exported programs, by the names that Triton's gives to inputs and outputs."""

import os
from typing import Any, Dict, List, Sequence

import numpy as np
import triton_python_backend_utils as pb_utils
from nereid.backends import naming
from nereid.backends.host import Arrays, Host, InvalidModel, framework, input_names, output_names
from nereid.stub.errors import Refused

_DATATYPES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING")

# Of Triton's backend, which has them for instances that share a process, or tune what the framework chooses now.
_IDLE = (
    "ENABLE_WEIGHT_SHARING", "ENABLE_CACHE_CLEANING", "ENABLE_JIT_EXECUTOR", "ENABLE_JIT_PROFILING", "ENABLE_TENSOR_FUSER", "ENABLE_NVFUSER",
)  # fmt: skip


class TritonPythonModel(Host):
    """A model in TorchScript (model.pt), or a program of torch.export or AOTInductor (model.pt2)."""

    failure = "PyTorch execute failure: "

    def open(self, path: str) -> None:
        """Load the model, and find which of its arguments each input is."""
        self._torch = torch = framework("pytorch", "torch", "torch")
        self.parameters.warn_of(_IDLE)
        self._optimized = not self.parameters.boolean("DISABLE_OPTIMIZED_EXECUTION")
        self._mode = torch.inference_mode if self.parameters.boolean("INFERENCE_MODE") else torch.no_grad
        for key, use in (("INTRA_OP_THREAD_COUNT", torch.set_num_threads), ("INTER_OP_THREAD_COUNT", torch.set_num_interop_threads)):
            if self.parameters.count(key) > 0:
                use(self.parameters.count(key))
        self._check_tensors()
        self._device = torch.device("cpu" if self.gpu is None else "cuda:%d" % self.gpu)
        self._takes_dictionary = False
        if path.endswith(".pt2"):
            self._load_program(path)
        else:
            self._load_script(path)
        self._places = naming.output_places(output_names(self.config))

    def _load_script(self, path: str) -> None:
        try:
            self._module = self._torch.jit.load(path, map_location=self._device)
        except (RuntimeError, ValueError) as error:
            raise self._unloadable(error) from None
        self._module.eval()
        self._find_arguments()

    def _load_program(self, path: str) -> None:
        """Load an exported program, or else a package that AOTInductor has compiled, whose arguments have no names."""
        torch, names = self._torch, input_names(self.config)
        if not hasattr(getattr(torch, "export", None), "load"):
            raise Refused("'%s' needs torch.export, which torch has from 2.1 on: torch is %s here" % (os.path.basename(path), torch.__version__))
        arguments: Sequence[str] = [""] * len(names)
        try:
            program = torch.export.load(path)
            self._module = program.module().to(self._device)
            arguments = program.graph_signature.user_inputs
        except Exception as error:
            try:
                self._module = torch._inductor.aoti_load_package(path)
            except Exception:  # what export says of the file is what a user can act on
                raise self._unloadable(error) from None
        self._order_arguments(names, arguments)

    def _unloadable(self, error: Exception) -> Refused:
        return Refused("failed to load model '%s': %s" % (self.name, error))

    def _check_tensors(self) -> None:
        for kind in ("input", "output"):
            for tensor in self.config[kind]:
                datatype = tensor["data_type"][len("TYPE_") :]
                if datatype not in _DATATYPES:
                    raise Refused("unsupported datatype TYPE_%s for %s '%s' for model '%s'" % (datatype, kind, tensor["name"], self.name))
                dims = tensor["reshape"].get("shape", []) if "reshape" in tensor else tensor["dims"]
                if datatype == "STRING" and len(dims) + (self.config.get("max_batch_size", 0) > 0) > 1:
                    raise Refused(
                        "Triton only supports 1 dimensional List of String as %s for '%s' for model '%s'" % (kind, tensor["name"], self.name)
                    )

    def _find_arguments(self) -> None:
        names = input_names(self.config)
        arguments = list(self._module.forward.schema.arguments)[1:]  # without self
        kinds = [argument.type.kind() for argument in arguments]
        self._takes_dictionary = kinds == ["DictType"]
        if self._takes_dictionary:
            return
        for argument, kind in zip(arguments, kinds):
            if kind not in ("TensorType", "ListType"):
                raise Refused(
                    "An input of type '%s' was detected in the model. Only a single input of type Dict(str, Tensor) or input(s) of type Tensor "
                    "are supported." % argument.type
                )
        self._order_arguments(names, [argument.name for argument in arguments])

    def _order_arguments(self, names: Sequence[str], arguments: Sequence[str]) -> None:
        if len(arguments) != len(names):
            raise Refused(
                "unable to load model '%s', configuration expects %d inputs, model provides %d" % (self.name, len(names), len(arguments))
            )
        self._order = naming.input_places(names, arguments)

    def run(self, inputs: Arrays) -> Arrays:
        """Run a batch."""
        torch = self._torch
        given = {name: self._to_model(array) for name, array in inputs.items()}
        arguments: List[Any] = [given] if self._takes_dictionary else self._ordered(given)
        with self._mode(), torch.jit.optimized_execution(self._optimized):
            returned = self._module(*arguments)
        values = list(returned) if isinstance(returned, tuple) else [returned]
        return {name: self._from_model(name, values, place) for name, place in self._places.items()}

    def _ordered(self, given: Dict[str, Any]) -> List[Any]:
        ordered: List[Any] = [None] * len(given)
        for name, value in given.items():
            ordered[self._order[name]] = value
        return ordered

    def _to_model(self, array: np.ndarray) -> Any:
        if array.dtype == np.object_:
            return [element.decode("utf-8", "surrogateescape") for element in array.ravel().tolist()]
        tensor = self._torch.from_numpy(array)
        return tensor if self.gpu is None else tensor.to(self._device)

    def _from_model(self, name: str, values: List[Any], place: int) -> np.ndarray:
        if place >= len(values):
            raise InvalidModel(
                "The output %s in the model configuration refers to an output index which doesn't exist. This model has %d outputs"
                % (name, len(values))
            )
        value = values[place]
        if isinstance(value, list) and all(isinstance(element, str) for element in value):
            array = np.array([element.encode("utf-8", "surrogateescape") for element in value], np.object_)
        elif isinstance(value, self._torch.Tensor):
            array = value.detach().cpu().numpy()
        else:
            raise TypeError(
                "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a List / Dictionary of "
                "Tensors or a Scalar"
            )
        self._check_datatype(name, array)
        return array

    def _check_datatype(self, name: str, array: np.ndarray) -> None:
        expected = self.outputs.get(name)
        if expected is not None and pb_utils.triton_string_to_numpy(expected) != array.dtype:
            raise InvalidModel(
                "configuration expects datatype %s for output '%s', model provides numpy's %s" % (expected, name, array.dtype)
            )
