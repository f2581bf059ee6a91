"""Which argument of a model an input is, and which of its results an output, by their names in the configuration."""

from typing import Dict, List, Optional, Sequence


def input_places(names: Sequence[str], arguments: Sequence[str]) -> Dict[str, int]:
    """Return the places of inputs: by the arguments' names, by <name>__<index>, or else in the order of the configuration."""
    if all(name in arguments for name in names):
        return {name: list(arguments).index(name) for name in names}
    indices = _indices(names)
    if indices is None or sorted(indices.values()) != list(range(len(arguments))):
        return {name: place for place, name in enumerate(names)}
    return indices


def output_places(names: Sequence[str]) -> Dict[str, int]:
    """Return the places of outputs: by <name>__<index>, or else in the order of the configuration."""
    return _indices(names) or {name: place for place, name in enumerate(names)}


def _indices(names: Sequence[str]) -> Optional[Dict[str, int]]:
    """Return the indices that the names have, if all have one."""
    found: List[int] = []
    for name in names:
        _, delimiter, index = name.partition("__")
        if not delimiter or not (index.isascii() and index.isdigit()):
            return None
        found.append(int(index))
    return dict(zip(names, found))
