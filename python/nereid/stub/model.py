"""The model: its file, and the class in it."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types
from typing import Any, Callable, Dict

from .errors import Refused

CLASS = "TritonPythonModel"


class Model:
    """An imported model.py, in the version's directory or of its backend, and the object of its class once it is initialized."""

    def __init__(self, file: str, args: Dict[str, str], directory: str) -> None:
        self.file = file
        self.name = args["model_name"]
        self.instance = args["model_instance_name"]
        own = os.path.abspath(file).startswith(os.path.join(os.path.abspath(directory), ""))
        self.type = _load(file, own)
        self.object: Any = None

    def initialize(self, args: Dict[str, str]) -> None:
        """Make the object and initialize it."""
        self.object = self.type()
        initialize = getattr(self.object, "initialize", None)
        if initialize is not None:
            initialize(args)
        # After initialize, which may choose the function.
        if not hasattr(self.object, "execute"):
            raise Refused("Python model %s does not implement `execute` method." % self.file)

    def asks(self) -> bool:
        """Say whether the model has its own say on readiness."""
        return hasattr(self.object, "is_ready")

    def is_async(self) -> bool:
        """Say whether execute is a coroutine."""
        return inspect.iscoroutinefunction(self.object.execute)


class _Source(importlib.machinery.SourceFileLoader):
    """Compiles a file as it is. Cached bytecode knows a file by its size and the second of its change, and one may be saved twice in that."""

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)  # type: ignore[no-any-return]


def _finder(inside: str, itself: str) -> Callable[[str], Any]:
    def find(path: str) -> Any:
        if path != itself and not os.path.join(path, "").startswith(os.path.join(inside, "")):
            raise ImportError("not the model's")
        return importlib.machinery.FileFinder(
            path,
            (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
            (_Source, importlib.machinery.SOURCE_SUFFIXES),
            (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
        )

    return find


def _read_anew(inside: str, itself: str) -> None:
    """Have what is imported from inside one directory, and from another itself, be compiled from its source."""
    sys.path_hooks.insert(0, _finder(inside, itself))
    for path in (inside, itself):
        sys.path_importer_cache.pop(path, None)
    importlib.invalidate_caches()


def _load(file: str, own: bool) -> Any:
    """Import the code as Triton does: a model's own as a module of a package that is named as its directory, a backend's by itself."""
    if not os.access(os.path.dirname(file), os.X_OK):
        raise Refused("The directory of the Python model file '%s' is closed to user %d." % (file, os.getuid()))
    if not os.path.isfile(file):
        raise Refused("Python model file not found in '%s'" % file)
    directory = os.path.dirname(file)
    module_name = os.path.splitext(os.path.basename(file))[0]
    for path in (directory, os.path.dirname(directory)) if own else (directory,):
        if path not in sys.path:
            sys.path.append(path)
    if own:
        # Made by hand, the package is this directory even where another of its name is on the path.
        name = os.path.basename(directory)
        package = types.ModuleType(name)
        package.__path__ = [directory]  # type: ignore[attr-defined]
        sys.modules[name] = package
        module_name = "%s.%s" % (name, module_name)
    _read_anew(directory, os.path.dirname(directory) if own else directory)
    spec = importlib.util.spec_from_file_location(module_name, file, loader=_Source(module_name, file)) if file.endswith(".py") else None
    if spec is None or spec.loader is None:
        raise Refused("Model name must end with '.py'. Model name is \"%s\"." % os.path.basename(file))
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    model = getattr(module, CLASS, None)
    if model is None:
        raise AttributeError("module '%s' has no attribute '%s'" % (module_name, CLASS))
    return model
