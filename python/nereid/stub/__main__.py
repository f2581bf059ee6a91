"""Run the stub of one instance: python -m nereid.stub, with the socket to the worker as file descriptor 3."""

import ctypes
import os
import signal
import socket
import sys
import threading

from . import process
from .connection import Connection
from .instance import Instance

DESCRIPTOR = 3

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the worker until it has enough of this process."""
    _close_others()
    sock = socket.socket(fileno=DESCRIPTOR)
    os.set_inheritable(DESCRIPTOR, False)
    # A pipe makes both of them wait for a block that is full; who reads a log wants lines.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.argv = [""]
    connection = Connection(sock)
    instance = Instance(connection)
    _own_children()
    instance.run()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the model has left must not keep the process.
    os._exit(0)


def _close_others() -> None:
    """Close what the worker, or who started it, had open and did not keep to itself."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return  # nobody says which there are
    for name in names:
        if int(name) > DESCRIPTOR:
            try:
                os.close(int(name))
            except OSError:
                pass  # it listed the others


def _own_children() -> None:
    """Have processes that the model forks leave the socket alone, and end with this one."""
    prctl = ctypes.CDLL(None).prctl
    forking = threading.local()

    def before() -> None:
        # The signal comes when the thread that forked ends, which of other threads may be long before the process does.
        forking.main = threading.current_thread() is threading.main_thread()
        forking.parent = os.getpid()

    def after() -> None:
        process.leave()
        if forking.main:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != forking.parent:
                os._exit(1)  # it has ended meanwhile

    os.register_at_fork(before=before, after_in_child=after)


main()
