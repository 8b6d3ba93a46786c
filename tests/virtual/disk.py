"""Disks in virtual time: real files, of which a power cut takes what was not synced, and threads that take time."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import InternalError, StentorError
from stentor.storage.segment import LOG_SUFFIX

if TYPE_CHECKING:
    from tests.virtual.world import Process, World

SYNC_US = (50, 4_000)


class Disk:
    """What one broker has; it outlives its processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hangs = False
        self.full = False
        self.fails = False  # the next sync
        self._synced: dict[str, int] = {}  # file -> how many of its bytes are safe

    def synced(self, path: str) -> None:
        """Everything in a file is safe; only logs grow in place, all else is written anew and renamed."""
        if path.endswith(LOG_SUFFIX):
            self._synced[path] = _used_bytes(path)

    def crash(self, rng: random.Random) -> None:
        """The power is cut: of what was written since the last sync any part may be gone."""
        for path in sorted(str(found) for found in self.directory.rglob(f"*{LOG_SUFFIX}")):
            used, safe = _used_bytes(path), self._synced.get(path, 0)
            if used > safe:
                kept = rng.randint(safe, used)
                with open(path, "r+b") as file:  # noqa: PTH123 - called often
                    file.seek(kept)
                    file.write(bytes(used - kept))  # the room was there before: a batch may end in zeros of its own


def _used_bytes(path: str) -> int:
    """Without the zeros that a file was given ahead."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - called often
            return len(file.read().rstrip(b"\0"))
    except FileNotFoundError:
        return 0


class VirtualThreads:
    """Stands in for `DiskThreads`: a piece of work is done at once, after a while."""

    def __init__(self, process: Process, disk: Disk, loop: Any, *, threads: int, name: str) -> None:
        self.loop = loop
        self.finished = 0
        self._process, self._world, self._disk = process, process.world, disk
        self._free = threads
        self._queue: deque[tuple[Callable[[], Any], Callable[[Any, StentorError | None], None]]] = deque()

    def submit(self, work: Callable[[], Any], done: Callable[[Any, StentorError | None], None]) -> None:
        self._queue.append((work, done))
        self._next()

    def _next(self) -> None:
        if self._free and self._queue:
            self._free -= 1
            work, done = self._queue.popleft()
            self._world.at(self._world.now + self._world.between(*SYNC_US), self._process, self._run, work, done)

    def _run(self, work: Callable[[], Any], done: Callable[[Any, StentorError | None], None]) -> None:
        if self._disk.hangs:
            self._world.at(self._world.now + 50_000, self._process, self._run, work, done)
            return
        result, error = None, None
        try:
            result = work()
        except StentorError as known:
            error = known
        except Exception as unknown:  # noqa: BLE001 - as the product's threads do
            self._world.errors.append(f"{self._process.name}: in a disk thread: {unknown!r}")
            error = InternalError(repr(unknown))
        self.finished += 1
        self._free += 1
        self.loop.call_soon(done, result, error)
        self._next()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def leave(self) -> None: ...

    def close(self) -> None:
        while self._queue:
            work, _ = self._queue.popleft()
            work()


@contextmanager
def virtual_machine(world: World, disks: dict[str, Disk]) -> Iterator[None]:
    """What the product asks of the machine beside its loop: syncs, room, time, chance."""
    import secrets
    import uuid

    def disk_of_current() -> Disk | None:
        return None if world.current is None else disks.get(world.current.name)

    def sync(fd: int) -> None:
        if (disk := disk_of_current()) is not None:
            if disk.fails:
                disk.fails = False
                raise OSError(5, "Input/output error")
            disk.synced(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115 - called often

    def room(real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def ask(what: Any) -> Any:
            found, disk = real(what), disk_of_current()
            if disk is None or not disk.full:
                return found
            return os.statvfs_result((*found[:4], 0, *found[5:]))

        return ask

    chance = random.Random(world.rng.random())
    random_state = random.getstate()
    random.seed(world.rng.random())
    replaced = [
        (os, "fsync", sync),
        (os, "fdatasync", sync),
        (os, "statvfs", room(os.statvfs)),
        (os, "fstatvfs", room(os.fstatvfs)),
        (time, "monotonic", lambda: world.now / 1_000_000),
        (time, "time_ns", lambda: (world.current.now_us() if world.current else world.now) * 1000),
        (secrets, "randbits", chance.getrandbits),
        (secrets, "randbelow", chance.randrange),
        (secrets, "token_bytes", lambda n=32: chance.randbytes(n)),
        (uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128))),
    ]
    saved = [(where, name, getattr(where, name)) for where, name, _ in replaced]
    for where, name, with_what in replaced:
        setattr(where, name, with_what)
    try:
        yield
    finally:
        for where, name, what in saved:
            setattr(where, name, what)
        random.setstate(random_state)
