"""Writes models, and prints requests with the outputs that the framework itself gives to them."""

import json
import os
import sys


def model(name, config):
    """Write a model's configuration and return its version's directory."""
    version = os.path.join(sys.argv[1], name, "1")
    os.makedirs(version)
    if config is not None:
        with open(os.path.join(os.path.dirname(version), "config.pbtxt"), "w") as file:
            file.write(config)
    return version


def tensors(kind, *listed):
    """Return inputs or outputs as a configuration has them: (name, datatype, dims)."""
    return "%s [ %s ]\n" % (kind, ", ".join('{ name: "%s" data_type: TYPE_%s dims: %s }' % tensor for tensor in listed))


def parameter(key, value):
    """Return a parameter as a configuration has it."""
    return 'parameters { key: "%s" value { string_value: "%s" } }\n' % (key, value)


_NAMES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "object": "BYTES"}


def _listed(arrays):
    return [
        {
            "name": name,
            "datatype": _NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data": [value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()],
        }
        for name, array in arrays.items()
    ]


def request(name, inputs, outputs=None, error=None):
    """Print a request, and its outputs or a part of the error's text."""
    print(json.dumps({"model": name, "inputs": _listed(inputs), "outputs": _listed(outputs or {}), "error": error or ""}))


def refused(name, text):
    """Print a model that cannot be loaded, and a part of the text that says why."""
    print(json.dumps({"model": name, "refused": text}))
