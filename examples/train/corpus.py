"""Finds text in the languages that the model `language` knows.

It is what a machine's toolchains ship: Go's own sources and its module cache, Python's
library and packages, the C compiler's headers, npm's packages, the documents and
scripts under the data directories, and the scripts on the path. Nothing is fetched.

A project (a module, a package, a folder of a library) is wholly in the training part
or wholly held out, and a digest of its name decides. So what one machine holds out, no
other machine trains on, and a copy vendored elsewhere is on the side of its original.

    python examples/train/corpus.py

prints how many files and projects of each language this machine has.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

LANGUAGES = {
    "Assembly": (".s", ".S"),
    "C": (".c", ".h"),
    "Go": (".go",),
    "HTML": (".html", ".htm"),
    "JavaScript": (".js", ".mjs", ".cjs"),
    "JSON": (".json",),
    "Makefile": (".mk",),
    "Markdown": (".md",),
    "Perl": (".pl", ".pm"),
    "Python": (".py", ".pyi"),
    "Shell": (".sh", ".bash"),
    "XML": (".xml",),
    "YAML": (".yml", ".yaml"),
}
NAMES = {"Makefile": "Makefile", "Makefile.in": "Makefile", "GNUmakefile": "Makefile"}
BY_SUFFIX = {suffix: name for name, all_ in LANGUAGES.items() for suffix in all_}
INTERPRETERS = re.compile(rb"#!.*\b(?:(sh|bash|dash)|(perl)|(python3?))\b")

# What follows one of these folders is a project of its own, whoever carries it.
CARRIERS = {"site-packages": 1, "dist-packages": 1, "node_modules": 1, "_vendor": 1}
CARRIERS["vendor"] = 3  # Go's: host/owner/module

LEAST_BYTES, MOST_BYTES = 64, 1 << 16  # of a file; what lies beyond is left out
LONGEST_LINE = 300  # on average; above it a program wrote the file for another
MOST_FILES = 60  # of one language in one project
HELD_OUT_OF = 5  # one project in so many is held out
CPLUSPLUS = re.compile(
    rb"^\s*(namespace\b|template\s*<|class\s+\w|using\s|#ifdef __cplusplus\s+class)"
    rb"|std::|\bconstexpr\b|\bnoexcept\b",
    re.MULTILINE,
)


@dataclass(frozen=True)
class File:
    """One file's text, what it is written in and whose it is."""

    path: Path
    language: str
    project: str
    text: bytes


@dataclass(frozen=True)
class Root:
    """A folder to look in; its first levels of folders tell projects apart."""

    path: Path
    levels: int


def output(*command: str) -> str:
    """Returns what a program prints, and nothing if the machine has none such."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    except OSError:
        return ""
    return done.stdout.strip() or done.stderr


def roots() -> Iterator[Root]:
    """Yields the folders that this machine's toolchains name."""
    for variable in ("GOROOT", "GOMODCACHE"):
        if folder := output("go", "env", variable):
            yield Root(Path(folder), 3)
    for kind in ("stdlib", "purelib"):
        yield Root(Path(sysconfig.get_path(kind)), 1)
    searched = output("cc", "-E", "-v", "-x", "c", os.devnull, "-o", os.devnull)
    for line in searched.splitlines():
        if line.startswith(" /") and " " not in line.strip():
            yield Root(Path(line.strip()).resolve(), 1)
    if folder := output("npm", "root", "--global"):
        yield Root(Path(folder), 1)
    shared = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    for folder in shared.split(":"):
        yield Root(Path(folder), 3)


def project_of(path: PurePath, levels: int) -> str:
    """Names the project of a file by its path under a root, without versions."""
    folders = path.parts[:-1]
    for at in reversed(range(len(folders))):
        if folders[at] in CARRIERS:
            levels, folders = CARRIERS[folders[at]], folders[at + 1 :]
            break
    named = []
    for folder in folders[:levels]:
        version = folder.find("@", 1)  # of a Go module, which ends here; not npm's @
        named.append(folder if version < 0 else folder[:version])
        if version > 0:
            break
    return "/".join(named) or path.stem


def is_held_out(project: str) -> bool:
    """Decides a project's side, the same on every machine."""
    return hashlib.sha256(project.lower().encode()).digest()[0] % HELD_OUT_OF == 0


def find_named() -> Iterator[tuple[Path, str, str]]:
    """Yields path, language and project of the files whose names say the language."""
    for root in roots():
        for folder, _, names in os.walk(root.path):
            for name in names:
                suffix = os.path.splitext(name)[1]
                language = NAMES.get(name) or BY_SUFFIX.get(suffix)
                if language:
                    path = Path(folder, name)
                    inner = path.relative_to(root.path)
                    yield path, language, project_of(inner, root.levels)


def find_scripts() -> Iterator[tuple[Path, str, str]]:
    """Yields the programs on the path that are scripts, by their first line."""
    for folder in os.get_exec_path():
        for path in sorted(Path(folder).glob("*")):
            if path.suffix or not path.is_file() or not os.access(path, os.R_OK):
                continue
            with path.open("rb") as file:
                match = INTERPRETERS.match(file.readline(80))
            if match:
                language = ("Shell", "Perl", "Python")[match.lastindex - 1]
                yield path, language, path.name.split("-")[0]


def is_usable(language: str, text: bytes) -> bool:
    """Leaves out what is no text, too short, not for people, or C++ in a C header."""
    if len(text) < LEAST_BYTES or b"\0" in text:
        return False
    if len(text) > LONGEST_LINE * (text.count(b"\n") + 1):
        return False
    return language != "C" or not CPLUSPLUS.search(text)


def read(path: Path) -> bytes:
    """Returns the file's beginning, and nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return b""


def digest(text: str | bytes) -> bytes:
    """Orders things in a way that depends on nothing else."""
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).digest()


def in_order(path: Path) -> tuple[bytes, str]:
    """Sorts files so that the first few are a sample, the same in every run."""
    return digest(path.name), str(path)


def pick(found: Iterable[tuple[Path, str, str]]) -> Iterator[File]:
    """Yields usable files, few of each language and project, no text twice."""
    groups: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path, language, project in found:
        groups[language, project].append(path)
    seen: set[bytes] = set()
    for (language, project), paths in sorted(groups.items()):
        left = MOST_FILES
        for path in sorted(set(paths), key=in_order):
            text = read(path) if left else b""
            key = digest(b"".join(text.split()))
            if not is_usable(language, text) or key in seen:
                continue
            seen.add(key)
            left -= 1
            yield File(path, language, project, text)


def collect() -> tuple[list[File], list[File]]:
    """Returns the training part and the held-out part."""
    held_out, training = [], []
    found = [*find_named(), *find_scripts()]
    for wanted, part in ((True, held_out), (False, training)):
        part.extend(pick(f for f in found if is_held_out(f[2]) is wanted))
    kept = {digest(b"".join(file.text.split())) for file in held_out}
    training = [f for f in training if digest(b"".join(f.text.split())) not in kept]
    return training, held_out


def main() -> None:
    parts = collect()
    print(f"{'language':12}{'training':>18}{'held out':>18}")
    for language in LANGUAGES:
        cells = []
        for part in parts:
            projects = [file.project for file in part if file.language == language]
            cells.append(f"{len(projects)} in {len(set(projects))}")
        print(f"{language:12}{cells[0]:>18}{cells[1]:>18}")


if __name__ == "__main__":
    main()
