"""Packs a built program and what it needs into one archive, with a file of checksums beside it.

    python3 deploy/dist/pack.py PROGRAM DIRECTORY

writes DIRECTORY/nereid-VERSION-linux-MACHINE.tar.gz and DIRECTORY/SHA256SUMS. The archive holds bin/nereid, ONNX Runtime
and the Python package under lib/nereid, the example models, and the licenses of everything that is linked or contained.
The same program and the same tree give the same bytes: entries are sorted, belong to nobody, and have the time of the last
commit, or of SOURCE_DATE_EPOCH. Needs `make deps`, and the go command and objdump that built the program.
"""

import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RUNTIME = ROOT / ".deps" / "onnxruntime"
# Of Ubuntu 22.04, the oldest system that the archive is for; Debian 12 has 2.36.
NEWEST_GLIBC = (2, 35)
LICENSE_NAMES = re.compile(r"(?i)(licen[sc]e|copying|notice|third.?party)[^/]*")
# What trees have beside what is packed of them.
LEFT_OUT = re.compile(r"(^|/)(__pycache__|tests|go\.mod|[^/]*\.go|[^/]*\.pyc)(/|$)")


def stop(message):
    """Ends the run with a message that says what to do."""
    sys.exit(f"dist: {message}")


def output(*command):
    """What a command prints."""
    try:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        stop(f"{command[0]} is not installed")
    except subprocess.CalledProcessError as error:
        stop(f"{' '.join(command)} failed:\n{error.stderr}")


def glibc_of(*files):
    """The newest version of the C library that one of the files asks for."""
    symbols = "".join(output("objdump", "-T", str(file)) for file in files)
    return max(tuple(map(int, found.split("."))) for found in re.findall(r"\(GLIBC_([\d.]+)\)", symbols))


def licenses():
    """Files by their names in the archive: the licenses of Go, of the modules that are linked, and of ONNX Runtime."""
    found = {"go/LICENSE": pathlib.Path(output("go", "env", "GOROOT").strip(), "LICENSE")}
    # A module that a replace line names is Nereid's own.
    template = "{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}}\t{{.Dir}}{{end}}{{end}}"
    for line in sorted(set(output("go", "list", "-deps", "-f", template, "./cmd/nereid").split("\n")) - {""}):
        module, directory = line.split("\t")
        own = [file for file in pathlib.Path(directory).iterdir() if file.is_file() and LICENSE_NAMES.fullmatch(file.name)]
        if not own:
            stop(f"the module {module} has no license file in {directory}: look whether it may be distributed")
        found.update({f"{module}/{file.name}": file for file in own})
    for name in ("LICENSE", "ThirdPartyNotices.txt"):
        found[f"onnxruntime/{name}"] = RUNTIME / name
    return {f"licenses/{name}": file for name, file in found.items()}


def tree(directory, name):
    """The files of a directory by their names in the archive."""
    files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    return {f"{name}/{path}": file for path, file in files.items() if not LEFT_OUT.search(path)}


def write(archive, name, files, time):
    """Writes the archive's file."""
    with open(archive, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(files):
            data = files[path].read_bytes()
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mtime = len(data), time
            entry.mode = 0o755 if path.startswith(("bin/", "lib/nereid/lib")) else 0o644
            tar.addfile(entry, io.BytesIO(data))


def main(program, directory):
    """Packs the program."""
    program, directory = pathlib.Path(program), pathlib.Path(directory)
    library = RUNTIME / "libonnxruntime.so"
    for file, remedy in ((program, "build it with `make dist`"), (library, "run `make deps`")):
        if not file.is_file():
            stop(f"{file} is missing: {remedy}")
    glibc = glibc_of(program, library)
    if glibc > NEWEST_GLIBC:
        stop(f"the program needs glibc {'.'.join(map(str, glibc))}, which Ubuntu 22.04 does not have: build it on Debian 12 or "
             "older, or in the image golang:1.26-bookworm")
    version = output(str(program), "version").split()[1]
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
    files = {
        "README.md": ROOT / "deploy" / "dist" / "README.md", "LICENSE": ROOT / "LICENSE", "NOTICE": ROOT / "NOTICE",
        "bin/nereid": program, "lib/nereid/libonnxruntime.so": library,
        **tree(ROOT / "python", "lib/nereid/python"), **tree(ROOT / "examples" / "models", "examples/models"),
        **tree(ROOT / "examples" / "images", "examples/images"), **licenses(),
    }
    directory.mkdir(parents=True, exist_ok=True)
    name = f"nereid-{version}-linux-{platform.machine()}"
    archive = directory / f"{name}.tar.gz"
    write(archive, name, files, time)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    (directory / "SHA256SUMS").write_text(f"{digest}  {archive.name}\n")
    print(f"dist: {archive}: {archive.stat().st_size / 1e6:.0f} MB, needs glibc {'.'.join(map(str, glibc))} or newer")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
