"""A worker for tests: it starts the stub as the worker does, and speaks to it over the socket."""

import array
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HEAD = struct.Struct("<III")
NAMES = {
    np.dtype(kind): name
    for kind, name in (
        ("?", "BOOL"), ("u1", "UINT8"), ("u2", "UINT16"), ("u4", "UINT32"), ("u8", "UINT64"), ("i1", "INT8"), ("i2", "INT16"),
        ("i4", "INT32"), ("i8", "INT64"), ("f2", "FP16"), ("f4", "FP32"), ("f8", "FP64"),
    )
}  # fmt: skip
KINDS = {name: kind for kind, name in NAMES.items()}
SHARED = 4096


class Died(Exception):
    """The stub has closed its end."""


class Worker:
    """One stub and what was said with it."""

    def __init__(self, source: str, decoupled: bool = False, config: Optional[Dict[str, Any]] = None) -> None:
        self.directory = tempfile.TemporaryDirectory()
        version = os.path.join(self.directory.name, "model", "1")
        os.makedirs(version)
        self.file = os.path.join(version, "model.py")
        self.write("model.py", source)
        self.decoupled = decoupled
        self.config = config or {"name": "model", "max_batch_size": 0, "input": [], "output": []}
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.socket.settimeout(60)
        # Models print what they like.
        self.output = tempfile.TemporaryFile()
        environment = dict(os.environ, PYTHONPATH=PACKAGE)
        inherited = theirs.fileno()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, str(inherited), sys.executable],
            pass_fds=[inherited], stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, env=environment,
            cwd=self.directory.name, start_new_session=True,
        )  # fmt: skip
        theirs.close()
        self.data = b""
        self.descriptors: List[int] = []
        self.maps: Dict[int, mmap.mmap] = {}
        self.own: Dict[int, mmap.mmap] = {}
        self.made = 0
        self.batches = 0
        self.released: List[Tuple[int, int]] = []
        self.logged: List[Dict[str, Any]] = []

    def write(self, name: str, source: str) -> None:
        """Write a file beside model.py."""
        with open(os.path.join(os.path.dirname(self.file), name), "w") as file:
            file.write(textwrap.dedent(source))

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()
        self.process.wait(60)
        for memory in list(self.maps.values()) + list(self.own.values()):
            memory.close()
        self.output.close()
        self.directory.cleanup()

    def printed(self) -> str:
        """Return what the stub has printed so far."""
        self.output.seek(0)
        return self.output.read().decode()

    # Messages

    def send(self, header: Dict[str, Any], body: bytes = b"", descriptors: Tuple[int, ...] = ()) -> None:
        encoded = json.dumps(header).encode()
        data = HEAD.pack(len(encoded), len(body), len(descriptors)) + encoded + body
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        sent = self.socket.sendmsg([data], ancillary)
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def _fill(self, size: int) -> None:
        while len(self.data) < size:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 16, 4096)
            for _, _, passed in ancillary:
                descriptors = array.array("i")
                descriptors.frombytes(passed)
                self.descriptors.extend(descriptors)
            if not data:
                raise Died("the stub closed its end; it printed: " + self.printed())
            self.data += data

    def frame(self) -> Tuple[Dict[str, Any], bytes]:
        """Return the next message, whatever it is."""
        self._fill(HEAD.size)
        head, size, descriptors = HEAD.unpack_from(self.data)
        self._fill(HEAD.size + head + size)
        header = json.loads(self.data[HEAD.size : HEAD.size + head])
        body = self.data[HEAD.size + head : HEAD.size + head + size]
        self.data = self.data[HEAD.size + head + size :]
        listed = header.get("files", []) if header["t"] != "drop" else []
        assert descriptors == len(listed), (header, descriptors)
        for number, length in listed:
            descriptor = self.descriptors.pop(0)
            self.maps[number] = mmap.mmap(descriptor, length)
            os.close(descriptor)
        return header, body

    def receive(self, *kinds: str) -> Tuple[Dict[str, Any], bytes]:
        """Return the next message that is no release and no log."""
        while True:
            header, body = self.frame()
            if header["t"] in kinds:
                return header, body
            if header["t"] == "release":
                self.released.extend(map(tuple, header.get("slots", [])))
            elif header["t"] == "drop":
                for number in header["files"]:
                    self.maps.pop(number).close()
            elif header["t"] == "log":
                self.logged.append(header)
            else:
                raise AssertionError("%r came, not %s" % (header, kinds))

    # A model's life

    def start(self, **more: Any) -> Dict[str, Any]:
        """Start the model, and return what the stub says of it."""
        self.send(dict(self._start("start"), **more))
        return self.receive("started", "failed")[0]

    def complete(self) -> Dict[str, Any]:
        self.send(dict(self._start("complete"), config=json.dumps(self.config)))
        return self.receive("completed", "failed")[0]

    def _start(self, kind: str) -> Dict[str, Any]:
        model = os.path.dirname(os.path.dirname(self.file))
        args = {
            "model_config": json.dumps(self.config), "model_instance_kind": "CPU", "model_instance_name": "model_0_0",
            "model_instance_device_id": "0", "model_repository": model, "model_version": "1", "model_name": "model",
        }  # fmt: skip
        start = {"t": kind, "args": args, "dir": os.path.dirname(self.file), "model": model, "file": self.file}
        if self.decoupled:
            start["decoupled"] = True
        return start

    def finalize(self) -> int:
        """End the model; return the exit status."""
        self.send({"t": "finalize"})
        self.receive("finalized")
        return self.process.wait(60)

    def submit(self, *requests: Dict[str, Any]) -> int:
        """Send a batch. A request's ins are a dict of arrays, lists of bytes being BYTES."""
        body = b""
        files: List[List[int]] = []
        descriptors: List[int] = []
        encoded = []
        for request in requests:
            listed = []
            for name, value in request.get("ins", {}).items():
                entry, piece = self._encode(name, value, files, descriptors)
                listed.append(entry)
                body += piece
            encoded.append(dict(request, ins=listed))
        self.batches += 1
        header: Dict[str, Any] = {"t": "batch", "batch": self.batches, "requests": encoded}
        if files:
            header["files"] = files
        self.send(header, body, tuple(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        return self.batches

    def _encode(self, name: str, value: Any, files: Any, descriptors: Any) -> Tuple[List[Any], bytes]:
        if isinstance(value, list):
            data, datatype, shape = b"".join(struct.pack("<I", len(one)) + one for one in value), "BYTES", [len(value)]
        else:
            data, datatype, shape = value.tobytes(), NAMES[value.dtype], list(value.shape)
        if len(data) < SHARED:
            return [name, datatype, shape, [len(data)]], data
        import fcntl

        size = max(1 << 20, 1 << (len(data) - 1).bit_length())
        descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, 1033, 2)
        self.own[self.made] = mmap.mmap(descriptor, size)
        self.own[self.made][: len(data)] = data
        files.append([self.made, size])
        descriptors.append(descriptor)
        self.made += 1
        return [name, datatype, shape, [self.made - 1, 0, len(data)]], b""

    def execute(self, *requests: Dict[str, Any]) -> Dict[str, Any]:
        """Execute a batch, and return ran with the responses decoded."""
        self.submit(*requests)
        return self.ran()

    def ran(self) -> Dict[str, Any]:
        header, body = self.receive("ran")
        at = 0
        for entry in header.get("responses", []):
            at = self.decode(entry[1], body, at)
        return header

    def responded(self) -> Dict[str, Any]:
        """Return the next response of a sender."""
        header, body = self.receive("respond")
        if "response" in header:
            self.decode(header["response"], body, 0)
        return header

    def decode(self, response: Dict[str, Any], body: bytes, at: int) -> int:
        """Put arrays in place of a response's outputs."""
        outputs = {}
        for name, datatype, shape, place in response.get("outs", []):
            if len(place) == 1:
                data = body[at : at + place[0]]
                at += place[0]
            else:
                data = bytes(self.maps[place[0]][place[1] : place[1] + place[2]])
                self.send({"t": "release", "slots": [place[:2]]})
            if datatype == "BYTES":
                outputs[name] = data
            else:
                outputs[name] = np.frombuffer(data, KINDS.get(datatype, np.dtype("u2"))).reshape(shape)
        response["outs"] = outputs
        return at


# What the worker does between fork and exec: the socket becomes descriptor 3.
_EXEC = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
if sys.argv[1] != "3": os.close(int(sys.argv[1]))
os.execv(sys.argv[2], [sys.argv[2], "-m", "nereid.stub"])
"""
