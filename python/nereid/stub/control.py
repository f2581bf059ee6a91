"""Control of other models by a model."""

from typing import Any, Dict, List, Optional

from . import process
from .errors import TritonModelException

_FILE = "file:"


def load_model(model_name: str, config: str = "", files: Optional[Dict[str, bytes]] = None) -> None:
    """Load a model, or load it again; files are contents by "file:" and their path, and replace those of the repository."""
    header: Dict[str, Any] = {"t": "control", "op": "load", "model": model_name}
    body: List[bytes] = []
    if config:
        header["config"] = config
    if files is not None:
        if not isinstance(files, dict):
            raise TritonModelException(
                "failed to load model '%s', files should be a dictionary of file paths and file contents" % model_name
            )
        header["contents"] = []
        for path, content in files.items():
            if not isinstance(path, str) or not isinstance(content, (bytes, bytearray)):
                raise TritonModelException(
                    "failed to load model '%s', files should be a dictionary of file paths and file contents" % model_name
                )
            if not path.startswith(_FILE):
                raise TritonModelException("unrecognized load parameter '%s'." % path)
            header["contents"].append([path[len(_FILE) :], len(content)])
            body.append(bytes(content))
    process.ask(header, body)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model, and on demand those that it is an ensemble of."""
    header: Dict[str, Any] = {"t": "control", "op": "unload", "model": model_name}
    if unload_dependents:
        header["dependents"] = True
    process.ask(header)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Say whether a model, or one version of it, takes requests."""
    header: Dict[str, Any] = {"t": "control", "op": "ready", "model": model_name}
    if model_version:
        header["version"] = model_version
    return bool(process.ask(header))
