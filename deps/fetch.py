"""Puts what Nereid needs besides Go modules under .deps/, pinned by hash; needs nothing but Python's own library.

    python3 deps/fetch.py             .deps/venv (the clients), .deps/onnxruntime and .deps/openvino (shared libraries)
    python3 deps/fetch.py --train     .deps/train (what examples/train imports)
    python3 deps/fetch.py --hosts     .deps/hosts (frameworks whose models tests serve)
    python3 deps/fetch.py --interop   .deps/triton-2.51 and .deps/kserve (clients of others), where they have wheels
    python3 deps/fetch.py --onnxruntime     the shared libraries alone, with the pip of the Python that runs this
    python3 deps/fetch.py --gpu       .deps/onnxruntime-gpu and .deps/cuda (what models on NVIDIA's GPUs need)
    python3 deps/fetch.py --provider  .deps/onnxruntime-gpu alone

A part that is already there for the same requirement file and the same Python is left alone, without asking the
network. A part is marked as there only when it is whole, so an interrupted run starts that part again.
"""

import contextlib
import fnmatch
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPS = ROOT / ".deps"
OLDEST_PYTHON = (3, 11)
# Wheels are chosen for one Python, whatever runs this script: only the files named here are used, under fixed names.
# A name that ends with a dot stands for the only file whose name begins with it, one with a star for all that match,
# under their own names.
WHEEL_PYTHON = "3.11"
TAGS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1"]
WHEELS = {
    "onnxruntime": {
        "onnxruntime/capi/libonnxruntime.so.": "libonnxruntime.so",
        "onnxruntime/LICENSE": "LICENSE",
        "onnxruntime/ThirdPartyNotices.txt": "ThirdPartyNotices.txt",
    },
    # OpenVINO as ONNX Runtime's execution provider, without what is for GPUs and NPUs.
    "openvino": {
        "onnxruntime_ep_openvino/" + name: name for name in (
            "libonnxruntime_providers_openvino_plugin.so", "libopenvino.so.2641", "libopenvino_onnx_frontend.so.2641",
            "libopenvino_intel_cpu_plugin.so", "libtbb.so.12", "libtbbbind_2_5.so.3", "libtbbmalloc.so.2", "libhwloc.so.15",
            "third-party-programs.txt")
    },
}
# Clients that tests run beside those of .deps/venv. Some have wheels for some machines alone.
INTEROP = ["triton-2.51", "kserve"]
# What only machines with GPUs of NVIDIA have a use for: ONNX Runtime with its providers, and the libraries that they load.
GPU_WHEELS = {
    "onnxruntime-gpu": {
        "onnxruntime/capi/libonnxruntime_providers_*.so": "",
        **WHEELS["onnxruntime"],
    },
    "cuda": {"nvidia/*/lib/lib*.so*": ""},
}
# The machines that a part is for; others do without it.
MACHINES = {"openvino": ["x86_64"], "onnxruntime-gpu": ["x86_64"], "cuda": ["x86_64"]}


def stop(message):
    """Ends the run with a message that says what to do."""
    sys.exit(f"deps: {message}")


def check_machine():
    """Refuses early what cannot work, with the remedy."""
    if sys.version_info < OLDEST_PYTHON:
        stop(f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer is needed, {sys.executable} is "
             f"{platform.python_version()}; name another with `make PYTHON=/path/to/python3`")
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        stop(f"the pinned wheels are for Linux on x86_64 and aarch64, this is {sys.platform} on {platform.machine()}")
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop(f"{sys.executable} has no venv module; on Debian and Ubuntu: apt-get install python3-venv python3-pip")


def mark_of(requirements):
    """The text that marks a part as whole: it changes with the requirement file and with the Python used."""
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    return f"{digest} {sys.implementation.cache_tag} {platform.machine()}\n"


def is_there(part, requirements):
    """Whether the part was finished for these requirements."""
    mark = part / ".installed"
    return mark.is_file() and mark.read_text() == mark_of(requirements)


@contextlib.contextmanager
def step(doing, part):
    """Says what is done for a part, and then how long it took."""
    print(f"deps: {doing} into {part.relative_to(ROOT)}", flush=True)
    begin = time.monotonic()
    yield
    print(f"deps: {part.relative_to(ROOT)} took {time.monotonic() - begin:.0f} s", flush=True)


def run(what, command):
    """Runs a command and stops with its own words if it fails."""
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        stop(f"{what} failed:\n{done.stdout}{done.stderr}")


def make_venv(name, requirements, *options):
    """Makes .deps/<name> with exactly the packages of the requirement file; returns its Python. The options are pip's."""
    part = DEPS / name
    python = part / "bin" / "python"
    if is_there(part, requirements) and python.exists():
        return python
    with step(f"installing {requirements.name}", part):
        run("making the virtual environment", [sys.executable, "-m", "venv", "--clear", part])
        run(f"installing {requirements.name}",
            [python, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", *options, "-r", requirements])
        (part / ".installed").write_text(mark_of(requirements))
    return python


def has_wheels(requirements):
    """Whether the requirement file has wheels for this Python and machine, by its second line."""
    mine = f"{sys.implementation.cache_tag.replace('cpython-', 'cp')} {platform.machine()}"
    return mine in requirements.read_text().splitlines()[1].removeprefix("# Wheels for Linux: ").rstrip(".").split(", ")


def unpack(wheel, files, target):
    """Takes files out of the wheel, under fixed names."""
    with zipfile.ZipFile(wheel) as archive:
        for wanted, name in files.items():
            found = [entry for entry in archive.namelist()
                     if fnmatch.fnmatchcase(entry, wanted) or wanted.endswith(".") and entry.startswith(wanted)]
            if not found or name and len(found) != 1:
                stop(f"{wheel.name} holds {len(found)} files named {wanted}, expected {'one' if name else 'some'}")
            for entry in found:
                with archive.open(entry) as source, open(target / (name or pathlib.PurePath(entry).name), "wb") as copy:
                    shutil.copyfileobj(source, copy)


def make_libraries(python, name, files):
    """Makes .deps/<name> from the wheels named by the requirement file of that name."""
    part, requirements = DEPS / name, ROOT / "deps" / f"{name}.txt"
    if platform.machine() not in MACHINES.get(name, [platform.machine()]) or is_there(part, requirements):
        return
    with step(f"unpacking {name}", part), tempfile.TemporaryDirectory(dir=DEPS) as scratch:
        download, fresh = pathlib.Path(scratch, "wheel"), pathlib.Path(scratch, name)
        fresh.mkdir()
        run(f"downloading {name}",
            [python, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--dest", download,
             "--python-version", WHEEL_PYTHON, "--implementation", "cp", "--only-binary=:all:",
             *[f"--platform={tag}_{platform.machine()}" for tag in TAGS], "-r", requirements])
        for wheel in sorted(download.glob("*.whl")):
            unpack(wheel, files, fresh)
        (fresh / ".installed").write_text(mark_of(requirements))
        shutil.rmtree(part, ignore_errors=True)
        fresh.rename(part)


def make_all(python, wheels):
    """Makes all parts of shared libraries."""
    for name, files in wheels.items():
        make_libraries(python, name, files)


def main(arguments):
    """Fetches the parts that the arguments name."""
    check_machine()
    DEPS.mkdir(exist_ok=True)
    if arguments == ["--train"]:
        make_venv("train", ROOT / "deps" / "train.txt")
    elif arguments == ["--hosts"]:
        make_venv("hosts", ROOT / "deps" / "hosts.txt")
    elif arguments == ["--interop"]:
        for name in INTEROP:
            requirements = ROOT / "deps" / f"{name}.txt"
            if has_wheels(requirements):
                make_venv(name, requirements, "--no-compile")  # tests import a small part of each
            else:
                print(f"deps: {name} is left out: it has no wheels for Python {platform.python_version()} on {platform.machine()}")
    elif arguments == ["--onnxruntime"]:
        make_all(sys.executable, WHEELS)
    elif arguments == ["--gpu"]:
        make_all(sys.executable, GPU_WHEELS)
    elif arguments == ["--provider"]:
        make_libraries(sys.executable, "onnxruntime-gpu", GPU_WHEELS["onnxruntime-gpu"])
    elif not arguments:
        make_all(make_venv("venv", ROOT / "deps" / "clients.txt"), WHEELS)
    else:
        stop(f"unknown arguments {arguments}; there are --train, --hosts, --interop, --onnxruntime, --gpu and --provider")


if __name__ == "__main__":
    main(sys.argv[1:])
