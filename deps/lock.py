"""Writes the hash-pinned requirement files from the .in files beside this script.

Run it with `make lock` after editing a .in file; it is the only step here that asks the package index which
versions exist. Every version is chosen once, for the oldest Python and the first platform below, and must then
exist for the others too, so each file names one version per package and one hash per wheel that may be used.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
MACHINES = ["x86_64", "aarch64"]
TAGS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux1"]


def resolve(python, machine, requirements, constraints, deps):
    """Returns {(name, version): hash} of the wheels pip would install there, or None where it finds no set."""
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch, "report.json")
        pins = pathlib.Path(scratch, "pins.txt")
        pins.write_text("\n".join(f"{name}=={version}" for name, version in constraints))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", scratch, "--only-binary=:all:"]
        command += ["--python-version", python, "--implementation", "cp", "--constraint", str(pins)]
        for tag in TAGS:
            command += ["--platform", f"{tag}_{machine}"]
        if not deps:
            command.append("--no-deps")
        done = subprocess.run(command + ["-r", str(requirements)], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"  {python} {machine}: left out: {done.stderr.strip().splitlines()[-1]}")
            return None
        found = json.loads(report.read_text())["install"]
    return {
        (item["metadata"]["name"].lower(), item["metadata"]["version"]): item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in found
    }


def lock(name, pythons, deps=True):
    """Writes name.txt from name.in."""
    wheels, covered = {}, []
    for python in pythons:
        for machine in MACHINES:
            found = resolve(python, machine, HERE / f"{name}.in", sorted(wheels), deps)
            if found is None:
                continue
            covered.append(f"cp{python.replace('.', '')} {machine}")
            for key, digest in found.items():
                wheels.setdefault(key, set()).add(digest)
    if not covered:
        sys.exit(f"{name}.in: no platform has all the wheels")
    lines = [
        f"# Made from {name}.in by `make lock`; edit that file, not this one.",
        f"# Wheels for Linux: {', '.join(covered)}.",
        "--only-binary :all:",
    ]
    for (package, version), digests in sorted(wheels.items()):
        lines.append(f"{package}=={version} \\")
        lines.append(" \\\n".join(f"    --hash=sha256:{digest}" for digest in sorted(digests)))
    (HERE / f"{name}.txt").write_text("\n".join(lines) + "\n")
    print(f"{name}.txt: {len(wheels)} packages for {len(covered)} platforms")


if __name__ == "__main__":
    # Only the shared library inside the wheel is used, so one wheel per machine serves every local Python.
    lock("onnxruntime", ["3.11"], deps=False)
    for name in ("openvino", "onnxruntime-gpu", "cuda"):
        lock(name, ["3.11"], deps=False)
    for name in ("clients", "triton-2.51", "kserve"):
        lock(name, PYTHONS)
    lock("train", PYTHONS)
    lock("hosts", PYTHONS)
