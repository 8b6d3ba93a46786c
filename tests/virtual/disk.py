"""Disks in virtual time: real files, of which a power cut takes what was not synced, and threads that take time."""

from __future__ import annotations

import os
import random
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.virtual.world import DiedError

from stentor.broker.partitions.log_sync import LogSync
from stentor.core.slowness import SyncTimes
from stentor.errors import InternalError, StentorError
from stentor.storage.segment import LOG_SUFFIX

if TYPE_CHECKING:
    from tests.virtual.world import Process, World

SYNC_US = (50, 4_000)
LOOK_US = 50_000  # until it is looked again whether a disk still hangs


class Disk:
    """What one broker has; it outlives its processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hangs = False
        self.unnoticed = False  # only logs hang: the probe of the disk finds nothing wrong
        self.slow = 1  # how many times as long everything takes
        self.adds_us = 0  # to everything
        self.full = False
        self.fails = False  # the next sync
        self.dies = False  # the power is cut in the middle of the next sync
        self.on_synced: Callable[[str], int | None] = lambda _: None  # says how much of a log is used, if that is known
        self.on_torn: Callable[[str], None] = lambda _: None  # hears of a file that a power cut took something from
        self.on_failed: Callable[[str, str], None] = lambda *_: None  # hears of a file whose sync failed, and whose
        self._synced: dict[str, int] = {}  # file -> how many of its bytes are safe

    def mend(self) -> None:
        self.hangs = self.unnoticed = self.full = self.fails = self.dies = False
        self.slow, self.adds_us = 1, 0

    def synced(self, path: str) -> None:
        """Everything in a file is safe; only logs and changes grow in place, all else is written anew and renamed."""
        if path.endswith(LOG_SUFFIX):
            used = self.on_synced(path)
            self._synced[path] = _used_bytes(path, self._synced.get(path, 0)) if used is None else used
        elif path.endswith(GROWING):
            self._synced[path] = os.stat(path).st_size  # noqa: PTH116 - called often

    def replaced(self, path: str) -> None:
        """Another file has this name now, and all of it is safe."""
        self._synced[path] = os.stat(path).st_size  # noqa: PTH116 - called often

    def crash(self, rng: random.Random) -> None:
        """The power is cut: of what was written since the last sync any part may be gone."""
        for path in self.files(*GROWING):
            safe = self._synced.get(path, 0)
            used = _used_bytes(path, safe)
            if used > safe:
                kept = rng.randint(safe, used)
                with open(path, "r+b") as file:  # noqa: PTH123 - called often
                    file.seek(kept)
                    file.write(bytes(used - kept))  # the room was there before: a batch may end in zeros of its own
                    if not path.endswith(LOG_SUFFIX):
                        file.truncate(kept)
                self.on_torn(path)

    def files(self, *suffixes: str) -> list[str]:
        return sorted(str(found) for found in self.directory.rglob("*") if found.name.endswith(suffixes))

    def forget(self) -> None:
        """Its files are others now, and all of them are safe."""
        self._synced = {path: _used_bytes(path, 0) for path in self.files(*GROWING)}


GROWING = (LOG_SUFFIX, ".changes")


def _used_bytes(path: str, known: int) -> int:
    """Without the zeros that a file was given ahead; some of it may be known to be used."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - called often
            file.seek(known)
            rest = file.read().rstrip(b"\0")
            if rest or not known:
                return known + len(rest)
            file.seek(0)  # it may have been cut back
            return len(file.read(known).rstrip(b"\0"))
    except FileNotFoundError:
        return 0


class VirtualThreads:
    """Stands in for `DiskThreads`: a piece of work is done at once, after a while."""

    def __init__(self, process: Process, disk: Disk, loop: Any, *, threads: int, name: str) -> None:
        self.loop = loop
        self._probes = name == "probe"
        self.finished = 0
        self.times = SyncTimes()
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
            takes = self._disk.slow * self._world.between(*SYNC_US)
            before = self._world.between(0, takes)  # what is appended after that moment is for the next sync
            self._world.at(self._world.now + before, self._process, self._run, takes - before, work, done)

    def _hangs(self) -> bool:
        return self._disk.hangs and not (self._probes and self._disk.unnoticed)

    def _run(self, takes: int, work: Callable[[], Any], done: Callable[[Any, StentorError | None], None]) -> None:
        if self._hangs():
            self._take_up(work)
            self._world.at(self._world.now + LOOK_US, self._process, self._run, takes, work, done)
            return
        result, error = None, None
        self._world.in_thread = True
        try:
            result = work()
        except StentorError as known:
            error = known
        except Exception as unknown:  # noqa: BLE001 - as the product's threads do
            self._world.broken.append(f"{self._process.name}: in a disk thread: {unknown!r}")
            error = InternalError(repr(unknown))
        finally:
            self._world.in_thread = False
        takes += self._disk.adds_us
        self._world.at(self._world.now + takes, self._process, self._finish, done, result, error)

    def _finish(
        self, done: Callable[[Any, StentorError | None], None], result: Any, error: StentorError | None
    ) -> None:
        if self._hangs():
            self._world.at(self._world.now + LOOK_US, self._process, self._finish, done, result, error)
            return
        self.finished += 1
        self._free += 1
        self.loop.call_soon(done, result, error)
        self._next()

    def _take_up(self, work: Callable[[], Any]) -> None:
        """A thread has begun with it, and stands in the middle of it: a partition knows since when."""
        sync = getattr(work, "__self__", None)
        if isinstance(sync, LogSync) and sync.began_us is None:
            sync.began_us = int(self._process.monotonic() * 1_000_000)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def leave(self) -> None: ...

    def close(self) -> None:
        while self._queue:
            work, _ = self._queue.popleft()
            work()


class Machine:
    """What the product asks of the machine beside its loop: syncs, room, time."""

    def __init__(self, world: World, disks: dict[str, Disk], power_cut: Callable[[str], bool]) -> None:
        self._world, self._disks, self._power_cut = world, disks, power_cut

    def _disk(self) -> Disk | None:
        process = self._world.current
        return None if process is None else self._disks.get(process.name)

    def sync(self, fd: int) -> None:
        disk = self._disk()
        if disk is None:
            return
        if disk.hangs and self._world.current is not None and not self._world.in_thread:
            self._world.current.stuck = lambda: disk.hangs
        if disk.fails:
            disk.fails = False
            disk.on_failed(os.readlink(f"/proc/self/fd/{fd}"), disk.directory.name)  # noqa: PTH115 - as below
            raise OSError(5, "Input/output error")
        if disk.dies and self._power_cut(disk.directory.name):
            raise DiedError
        disk.synced(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115 - called often

    def room(self, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def ask(what: Any) -> Any:
            found, disk = real(what), self._disk()
            if disk is None or not disk.full:
                return found
            return os.statvfs_result((*found[:4], 0, *found[5:]))

        return ask

    def replace(self, real: Callable[..., None]) -> Callable[..., None]:
        """A log that is put in the place of another one was synced before, under another name."""

        def put(source: Any, target: Any) -> None:
            real(source, target)
            disk, path = self._disk(), str(target)
            if disk is not None and path.endswith(LOG_SUFFIX):
                disk.replaced(path)

        return put

    def wall_ns(self) -> int:
        process = self._world.current
        return (self._world.now if process is None else process.now_us()) * 1000

    def monotonic(self) -> float:
        process = self._world.current
        return self._world.now / 1_000_000 if process is None else process.monotonic()


@contextmanager
def virtual_machine(world: World, disks: dict[str, Disk], power_cut: Callable[[str], bool]) -> Iterator[None]:
    """Run the product on it, with chance from the world's."""
    machine = Machine(world, disks, power_cut)
    chance = random.Random(world.rng.random())
    random_state = random.getstate()
    random.seed(world.rng.random())
    replaced = [
        (os, "fsync", machine.sync),
        (os, "fdatasync", machine.sync),
        (os, "statvfs", machine.room(os.statvfs)),
        (os, "fstatvfs", machine.room(os.fstatvfs)),
        (os, "replace", machine.replace(os.replace)),
        (time, "monotonic", machine.monotonic),
        (time, "time_ns", machine.wall_ns),
        (secrets, "randbits", chance.getrandbits),
        (secrets, "randbelow", chance.randrange),
        (secrets, "token_bytes", lambda n=32: chance.randbytes(n)),
        (uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128))),
    ]
    try:
        with ExitStack() as stack:
            for where, name, with_what in replaced:
                stack.enter_context(patch.object(where, name, with_what))
            yield
    finally:
        random.setstate(random_state)
