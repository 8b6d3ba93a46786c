"""How a process of our own keeps memory: brokers and Spark's Python workers, never an application's process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


_own_process = False


def keep_long_lived_objects() -> None:
    """What exists now stays: the garbage collector need not look at it again, in a process of our own.

    A full collection walks over the modules of a broker that has just started for 50 ms, during which nobody gets
    anything; with ten thousand partitions for half a second, and a peer that long silent counts as dead. Reference
    counts free nearly everything; of cycles, only those that are garbage at this very moment are never found.
    """
    if _own_process:
        gc.collect(1)
        gc.freeze()


def keep_freed_memory() -> None:
    """Ask glibc to reuse the memory of batches instead of giving it back and faulting it in again.

    By default each batch of more than 128 KiB is mapped, faulted in page by page, and unmapped: a tenth of a
    broker's time at full speed. What is kept is bounded by what was in use at once.
    """
    global _own_process  # noqa: PLW0603 - a fact about the process
    _own_process = True
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        mallopt(_M_TOP_PAD, 8 << 20)


_LOOK_S: Final = 10.0
_GROWN_BYTES: Final = 8 << 20
"""Memory that the process has more than it ever got by with, and that is worth a look."""


async def give_back_freed_memory() -> None:
    """Now and then return to the operating system what is kept and not in use; runs until it is cancelled.

    A busy broker faults its working set in again, every ten seconds: a few milliseconds. One that a crowd has left is
    as small again as before.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return
    floor = _resident_bytes()
    while True:
        await asyncio.sleep(_LOOK_S)
        if _resident_bytes() > floor + _GROWN_BYTES:
            gc.collect(1)  # connections that are gone refer to themselves, and hold what they had
            await asyncio.to_thread(trim, 0)
        floor = min(floor, _resident_bytes())


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no such file on this system
        return 0


_CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MEMORY_GUESSED: Final = 1 << 30  # of a machine that does not say: few have less


def machine_memory() -> int:
    """Return how many bytes of memory this process may use: the machine's, or its container's if that is less."""
    try:
        found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # no such figure on this system
        found = _MEMORY_GUESSED
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file
            found = min(found, int(Path(path).read_text(encoding="ascii")))
    return found
