"""The guard of a worker: it ends what the worker's stubs have begun, once the worker has died and cannot.

It is run as a file, with a pipe of the worker as its standard input: a line `+ID` for each process group that begins, `-ID` for each
that has ended. The pipe's end is the worker's.
"""

import os
import signal
import sys
from typing import BinaryIO, Set


def left(lines: BinaryIO) -> Set[int]:
    """Return the groups that have begun and not ended by the last line."""
    groups: Set[int] = set()
    for line in lines:
        (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    return groups


def main() -> None:
    """Wait for the worker's end, and kill what is left then."""
    for ending in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)  # whoever ends the worker may tell all that it has started
    os.closerange(3, min(os.sysconf("SC_OPEN_MAX"), 1 << 16))
    for group in left(sys.stdin.buffer):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended with the worker


if __name__ == "__main__":
    main()
