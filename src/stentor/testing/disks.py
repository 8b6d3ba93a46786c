"""Disks that can be filled and made to hang, for a cluster of real brokers.

A disk of its own is a tmpfs at the broker's data directory: small, so that it fills up quickly. A disk hangs when
`strace` holds every sync of the broker's process; it works for any data directory. Both need Linux and root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from stentor.errors import DeadlineExceeded, InternalError

_FILLER: Final = "filler"
_ATTACH_S: Final = 10.0
_CHUNK: Final = bytes(1 << 20)


def why_no_disks() -> str:
    """One sentence why there can be no disks of their own here; empty where there can."""
    if os.geteuid() != 0:
        return "Separate disks need root, to mount them."
    return "" if shutil.which("mount") else "Separate disks need the program mount."


def why_no_hanging() -> str:
    """One sentence why no disk can be made to hang here; empty where one can."""
    if os.geteuid() != 0:
        return "A disk that hangs needs root, to trace the broker's process."
    return "" if shutil.which("strace") else "A disk that hangs needs the program strace: apt-get install strace."


def require_disks(*, hanging: bool = False) -> None:
    """Skip the test that calls this where it cannot be run."""
    import pytest

    if reason := why_no_disks() or (why_no_hanging() if hanging else ""):
        pytest.skip(reason)


class Disk:
    """A small disk of its own for one broker."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.directory = directory
        self._mounted = False
        self._size_bytes = size_bytes

    def mount(self) -> None:
        if self._mounted:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes},mode=0700"
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.directory))
        self._mounted = True

    def fill(self) -> None:
        """Leave no byte free."""
        with (self.directory / _FILLER).open("wb", buffering=0) as filler:
            for chunk in (_CHUNK, _CHUNK[:4096]):
                while True:
                    try:
                        if filler.write(chunk) < len(chunk):
                            break
                    except OSError:
                        break

    def free(self) -> None:
        (self.directory / _FILLER).unlink(missing_ok=True)

    def remove(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.directory)], check=False)  # noqa: S603, S607 - our own mount
            self._mounted = False


class HangingSyncs:
    """Holds every sync of a process for as long as this is in force."""

    def __init__(self, pid: int) -> None:
        held = "fsync,fdatasync,syncfs"
        command = ["strace", "-qq", "-f", "-p", str(pid), "-e", f"trace={held}", "-e"]
        command += [f"inject={held}:delay_enter=3600s", "-o", os.devnull]
        self._tracer = subprocess.Popen(command)  # noqa: S603 - a program of the system with our own arguments
        deadline = time.monotonic() + _ATTACH_S
        while not self._holds(pid):
            if self._tracer.poll() is not None or time.monotonic() > deadline:
                self.release()
                raise DeadlineExceeded(f"strace could not attach to process {pid}.")
            time.sleep(0.01)

    def _holds(self, pid: int) -> bool:
        """Whether every thread of the process is traced."""
        threads = [path.read_text(encoding="ascii") for path in Path(f"/proc/{pid}/task").glob("*/status")]
        return bool(threads) and all(f"TracerPid:\t{self._tracer.pid}\n" in status for status in threads)

    def release(self) -> None:
        """Let them go on."""
        if self._tracer.poll() is None:
            self._tracer.send_signal(signal.SIGTERM)
        self._tracer.wait()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
    if done.returncode:
        raise InternalError(f"The disks of the cluster: `{' '.join(command)}` failed: {done.stderr.strip()}")
