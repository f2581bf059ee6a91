"""The backend openvino: models of OpenVINO's own format, and those that it reads, such as ONNX."""

import os
from typing import Any, Dict, List

import numpy as np
from nereid.backends.complete import Declared, complete
from nereid.backends.host import Arrays, Host, framework, input_names, model_file, output_names
from nereid.stub.errors import Refused

_DEFAULT_FILE = "model.xml"
_OTHER_FILES = ("model.onnx", "model.pdmodel", "model.pb", "model.tflite", "saved_model")

# The properties of OpenVINO by the parameters of Triton's backend, of which some have older names.
_PROPERTIES = {
    "INFERENCE_NUM_THREADS": "INFERENCE_NUM_THREADS",
    "CPU_THREADS_NUM": "INFERENCE_NUM_THREADS",
    "NUM_STREAMS": "NUM_STREAMS",
    "CPU_THROUGHPUT_STREAMS": "NUM_STREAMS",
    "PERFORMANCE_HINT": "PERFORMANCE_HINT",
    "INFERENCE_PRECISION_HINT": "INFERENCE_PRECISION_HINT",
}

# Batches have the size that they have: nothing is padded.
_IDLE = ("SKIP_OV_DYNAMIC_BATCHSIZE", "SKIP_DYNAMIC_BATCHSIZE", "ENABLE_BATCH_PADDING")


class TritonPythonModel(Host):
    """A model that OpenVINO has compiled."""

    failure = "OpenVINO execute failure: "

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Take from the model what the configuration leaves out."""
        given = config.as_dict()
        model = _read(framework("openvino", "openvino", "openvino").Core(), given["name"], model_file(given))
        return complete(config, _declared(given["name"], model.inputs), _declared(given["name"], model.outputs))

    def open(self, path: str) -> None:
        """Compile the model, for batches of any size where it batches."""
        core = framework("openvino", "openvino", "openvino").Core()
        self.parameters.warn_of(_IDLE)
        extension = self.parameters.text("CPU_EXTENSION_PATH")
        if extension:
            core.add_extension(extension)
        model = _read(core, self.name, path)
        self._check_names("input", input_names(self.config), model.inputs)
        self._check_names("output", output_names(self.config), model.outputs)
        self._reshape(model)
        properties = {
            to: self.parameters.text(key).upper() for key, to in _PROPERTIES.items() if self.parameters.text(key)
        }
        device = self.parameters.text("TARGET_DEVICE") or ("CPU" if self.gpu is None else "GPU.%d" % self.gpu)
        try:
            self._request = core.compile_model(model, device, properties).create_infer_request()
        except RuntimeError as error:
            raise Refused("failed to load model '%s' on %s: %s" % (self.name, device, error)) from None
        self._ports = {name: self._request.model_outputs[place] for name, place in self._places(model.outputs).items()}
        self._names = output_names(self.config)

    def _check_names(self, kind: str, names: List[str], ports: Any) -> None:
        there = self._places(ports)
        for name in names:
            if name not in there:
                raise Refused("unexpected inference %s '%s', allowed %ss are: %s" % (kind, name, kind, ", ".join(sorted(there))))
        if kind == "input" and len(names) != len(ports):
            raise Refused(
                "unable to load model '%s', configuration expects %d inputs, model provides %d" % (self.name, len(names), len(ports))
            )

    @staticmethod
    def _places(ports: Any) -> Dict[str, int]:
        return {name: place for place, port in enumerate(ports) for name in port.get_names()}

    def _reshape(self, model: Any) -> None:
        """Open the first dimension of a model that batches, and where that is asked for take the others from the configuration."""
        batches = self.config.get("max_batch_size", 0) > 0
        places = self._places(model.inputs)
        shapes = [_shape(port) for port in model.inputs]
        if self.parameters.boolean("RESHAPE_IO_LAYERS"):
            for tensor in self.config["input"]:
                shapes[places[tensor["name"]]] = [-1] * batches + [int(size) for size in tensor["dims"]]
        elif batches:
            shapes = [shape and [-1] + shape[1:] for shape in shapes]
        else:
            return
        model.reshape({place: shape for place, shape in enumerate(shapes) if shape})

    def run(self, inputs: Arrays) -> Arrays:
        """Run a batch."""
        returned = self._request.infer(inputs)
        return {name: np.asarray(returned[self._ports[name]]) for name in self._names}


def _read(core: Any, name: str, path: str) -> Any:
    if not os.path.exists(path) and os.path.basename(path) == _DEFAULT_FILE:
        others = [os.path.join(os.path.dirname(path), other) for other in _OTHER_FILES]
        path = next((other for other in others if os.path.exists(other)), path)
    try:
        return core.read_model(path)
    except RuntimeError as error:
        raise Refused("failed to load model '%s' from %s: %s" % (name, path, error)) from None


def _shape(port: Any) -> Any:
    """Return the shape of an input or output, -1 where a dimension is variable; None without a fixed rank."""
    shape = port.partial_shape
    return None if shape.rank.is_dynamic else [-1 if size.is_dynamic else size.get_length() for size in shape]


def _declared(model: str, ports: Any) -> List[Declared]:
    names = {
        "boolean": "BOOL", "u8": "UINT8", "u16": "UINT16", "u32": "UINT32", "u64": "UINT64", "i8": "INT8", "i16": "INT16", "i32": "INT32",
        "i64": "INT64", "f16": "FP16", "f32": "FP32", "f64": "FP64", "string": "STRING",
    }  # fmt: skip
    listed = []
    for port in ports:
        name, kind = port.get_any_name(), port.element_type.get_type_name()
        if kind not in names:
            raise Refused("autofill failed for model '%s': '%s' has the datatype %s, which models cannot have here" % (model, name, kind))
        listed.append(Declared(name, "TYPE_" + names[kind], _shape(port)))
    return listed
