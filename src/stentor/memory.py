"""How a process of our own keeps memory: brokers and Spark's Python workers, never an application's process."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # of malloc.h
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Ask glibc to reuse the memory of batches instead of giving it back and faulting it in again.

    By default each batch of more than 128 KiB is mapped, faulted in page by page, and unmapped: a tenth of a
    broker's time at full speed. What is kept is bounded by what was in use at once.
    """
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        mallopt(_M_TOP_PAD, 8 << 20)
