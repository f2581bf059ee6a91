"""The backend tensorflow: a signature of a SavedModel."""

import json
from typing import Any, Dict, List, Optional

import numpy as np
from nereid.backends.complete import Declared, complete
from nereid.backends.host import Arrays, Host, Parameters, framework, input_names, model_file, output_names
from nereid.stub.errors import Refused

_DEFAULT_SIGNATURE = "serving_default"

# Of Triton's backend, which keeps sessions.
_IDLE = ("MAX_SESSION_SHARE_COUNT", "TF_USE_PER_SESSION_THREADS", "TF_INIT_OPS_FILE")


class TritonPythonModel(Host):
    """A signature of a SavedModel."""

    failure = "TensorFlow execute failure: "

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Take from the signature what the configuration leaves out."""
        given = config.as_dict()
        tf = framework("tensorflow", "tensorflow", "tensorflow-cpu")
        tf.config.set_visible_devices([], "GPU")
        signature = _Signature(tf, given["name"], model_file(given), Parameters(given))
        return complete(config, _declared(given["name"], signature.inputs), _declared(given["name"], signature.outputs))

    def open(self, path: str) -> None:
        """Load the model, and check that its signature has what the configuration lists."""
        self._tf = tf = framework("tensorflow", "tensorflow", "tensorflow-cpu")
        self.parameters.warn_of(_IDLE)
        threading = tf.config.threading
        for key, use in (
            ("TF_NUM_INTRA_THREADS", threading.set_intra_op_parallelism_threads),
            ("TF_NUM_INTER_THREADS", threading.set_inter_op_parallelism_threads),
        ):
            if self.parameters.count(key) > 0:
                use(self.parameters.count(key))
        gpus = tf.config.list_physical_devices("GPU") if self.gpu is not None else []
        if self.gpu is not None and self.gpu >= len(gpus):
            raise Refused("the model's instances have GPU %d, and TensorFlow finds %d: use KIND_CPU" % (self.gpu, len(gpus)))
        tf.config.set_visible_devices(gpus[self.gpu : self.gpu + 1] if self.gpu is not None else [], "GPU")
        self._signature = _Signature(tf, self.name, path, self.parameters)
        self._names = output_names(self.config)
        for kind, names, there in (
            ("input", input_names(self.config), self._signature.inputs),
            ("output", self._names, self._signature.outputs),
        ):
            for name in names:
                if name not in there:
                    raise Refused(
                        "unexpected inference %s '%s', allowed %ss are: %s" % (kind, name, kind, ", ".join(sorted(there)))
                    )
        if len(input_names(self.config)) != len(self._signature.inputs):
            raise Refused(
                "unable to load model '%s', configuration expects %d inputs, model provides %d"
                % (self.name, len(input_names(self.config)), len(self._signature.inputs))
            )

    def run(self, inputs: Arrays) -> Arrays:
        """Run a batch."""
        given = {}
        for name, array in inputs.items():
            spec = self._signature.inputs[name]
            scalar = spec.shape.rank == 0 and array.shape == (1,)
            given[name] = self._tf.constant(array.reshape(()) if scalar else array, dtype=spec.dtype)
        returned = self._signature.call(**given)
        return {name: np.asarray(returned[name].numpy()) for name in self._names}


class _Signature:
    """A signature of a loaded SavedModel, which stays loaded with it."""

    def __init__(self, tf: Any, model: str, path: str, parameters: Parameters) -> None:
        tag: Optional[str] = parameters.text("TF_GRAPH_TAG") or None
        try:
            self._model = tf.saved_model.load(path, tags=tag and [tag])
        except (OSError, RuntimeError, ValueError) as error:
            raise Refused("failed to load model '%s' from %s: %s" % (model, path, error)) from None
        signatures = self._model.signatures
        name = parameters.text("TF_SIGNATURE_DEF") or (_DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in signatures else next(iter(signatures), ""))
        if name not in signatures:
            raise Refused(
                "the SavedModel of model '%s' has no signature '%s': name one of %s by the parameter TF_SIGNATURE_DEF, or save it with signatures="
                % (model, name or _DEFAULT_SIGNATURE, json.dumps(sorted(signatures)))
            )
        self.call = signatures[name]
        self.inputs: Dict[str, Any] = self.call.structured_input_signature[1]
        self.outputs: Dict[str, Any] = self.call.structured_outputs


def _declared(model: str, specs: Dict[str, Any]) -> List[Declared]:
    listed = []
    for name, spec in sorted(specs.items()):
        shape = None if spec.shape.rank is None else [-1 if size is None else size for size in spec.shape.as_list()]
        listed.append(Declared(name, _data_type(model, name, spec.dtype), shape))
    return listed


def _data_type(model: str, name: str, dtype: Any) -> str:
    names = {
        "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8", "int16": "INT16",
        "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64", "string": "STRING",
    }  # fmt: skip
    if dtype.name not in names:
        raise Refused("autofill failed for model '%s': '%s' has the datatype %s, which models cannot have here" % (model, name, dtype.name))
    return "TYPE_" + names[dtype.name]
