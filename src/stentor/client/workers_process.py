"""Worker processes: each with an interpreter of its own, so that Python code runs on all cores.

A child is started fresh (no fork), loads the handler by its name, and gets whole parcels over a socket pair. When it
dies, the kernel closes its end: that is noticed at once. The page of memory that it shares with this process says how
many messages it had finished (`client.workers_wire`), and another child takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor.client.workers_pool import PoolWorker
from stentor.client.workers_wire import (
    FINISHED_BITS,
    GROUP_SIGNALS,
    PAGE_BYTES,
    Frames,
    HandlerRaised,
    HandlerReady,
    LoadHandler,
    ParcelFinished,
    ParcelsRecalled,
    RecallParcels,
    frame,
    pack,
)
from stentor.errors import InvalidArgument
from stentor.work_errors import HandlerError, WorkerDied

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.client.workers_handler import HandlerName
    from stentor.client.workers_plan import Parcel
    from stentor.client.workers_pool import WorkReports

logger = logging.getLogger(__name__)

START_S: Final = 60.0
"""How long a child may take to load its handler: some import much."""

EARLY_DEATHS_MAX: Final = 5
"""Children in a row that died before they finished anything or died of a message: then the handler is not to blame."""

_DEAD_S: Final = 0.2  # the kernel closes the socket a moment before the process is gone
_READ_BYTES: Final = 65_536
_END_S: Final = 2.0  # children end when their socket is closed; those that do not by then are killed


class _ChildWorker(PoolWorker, asyncio.Protocol):
    """One child, and the socket to it."""

    def __init__(self, pool: ProcessPool) -> None:
        super().__init__()
        self._pool = pool
        self.process: subprocess.Popen[bytes] | None = None
        self.page: mmap.mmap | None = None
        self.transport: asyncio.Transport | None = None
        self.socket: socket.socket | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.why: Exception | None = None  # it was given up, because of this
        self._frames = Frames(at_child=False)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for said in self._frames.feed(data):
            self._pool.said(self, said)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self.socket is not None:  # writing failed: what it said before was not read yet
            with suppress(OSError, msgspec.MsgspecError):
                while data := self.socket.recv(_READ_BYTES):
                    self.data_received(data)
        self._pool.lost(self)

    def progress(self) -> tuple[int, int]:
        """Which parcel it is at, and how many messages of it are finished."""
        return _split(0 if self.page is None else int.from_bytes(self.page[:8], sys.byteorder))

    def started(self) -> tuple[int, int]:
        """Of which leased parcel it has begun messages, and how many."""
        return _split(0 if self.page is None else int.from_bytes(self.page[8:16], sys.byteorder))


class ProcessPool:
    """Children that handle parcels."""

    def __init__(
        self, handler: HandlerName, workers: int, *, batch: bool, fatal: bool, traced: str | None = None
    ) -> None:
        self._load = LoadHandler(handler, batch, fatal, traced)
        self._count = workers
        self.workers: list[PoolWorker] = []  # those that have loaded the handler
        self._children: set[_ChildWorker] = set()  # also those that have not
        self._reports: WorkReports | None = None
        self._closing = False
        self._early_deaths = 0
        self._replacing: set[asyncio.Task[None]] = set()

    async def open(self, reports: WorkReports) -> None:
        """Start the children, until all have loaded the handler."""
        self._reports = reports
        started = await asyncio.gather(*(self._start() for _ in range(self._count)), return_exceptions=True)
        for each in started:
            if isinstance(each, BaseException):
                raise each

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        page = os.memfd_create("stentor-worker")
        worker = _ChildWorker(self)
        try:
            os.ftruncate(page, PAGE_BYTES)
            worker.page = mmap.mmap(page, PAGE_BYTES)
            command = [sys.executable, "-m", "stentor.client.workers_child", str(theirs.fileno()), str(page)]
            beginning = asyncio.create_task(asyncio.to_thread(_begin, command, (theirs.fileno(), page)))
            try:
                worker.process = await asyncio.shield(beginning)
            except asyncio.CancelledError:
                worker.process = await beginning  # it takes no time, and needs both descriptors
                ours.close()
                raise
            finally:
                if worker.process is not None:
                    self._children.add(worker)
        finally:
            theirs.close()
            os.close(page)
        ours.setblocking(False)  # noqa: FBT003 - the shape is the library's
        worker.socket = ours
        await loop.create_unix_connection(lambda: worker, sock=ours)
        assert worker.transport is not None
        worker.transport.write(frame(self._load))
        try:
            async with asyncio.timeout(START_S):
                await worker.ready
        except TimeoutError:
            raise WorkerDied(
                f"A worker process did not load {self._load.handler} within {START_S:g} s.",
                hint="Let the handler's module do less when it is imported.",
            ) from None

    # --- what the loop asks ---------------------------------------------------------------------

    def hand(self, worker: PoolWorker, parcel: Parcel) -> None:
        """To its process, by columns."""
        assert isinstance(worker, _ChildWorker)
        worker.parcels.append(parcel)
        if worker.transport is not None:
            until = parcel.until if parcel.leased else None
            worker.transport.write(frame(pack(parcel.number, parcel.messages, until)))

    def recall(self, worker: PoolWorker) -> None:
        """Ask it for what it has not begun."""
        assert isinstance(worker, _ChildWorker)
        if worker.transport is not None and worker.parcels:
            worker.transport.write(frame(RecallParcels()))

    def position(self, worker: PoolWorker) -> tuple[int, int]:
        """What its page says."""
        assert isinstance(worker, _ChildWorker)
        return worker.progress()

    def started(self, worker: PoolWorker, parcel: Parcel) -> int:
        """How many messages of its first parcel its handler was called with, if the parcel is leased."""
        assert isinstance(worker, _ChildWorker)
        number, count = worker.started()
        return count if number == parcel.number else 0

    def give_up(self, worker: PoolWorker, error: Exception) -> None:
        """Kill it: its end is noticed as any other."""
        assert isinstance(worker, _ChildWorker)
        if worker.why is None and worker.process is not None:
            worker.why = error
            worker.process.kill()

    async def close(self) -> None:
        """End all children: at once if they have nothing to do."""
        self._closing = True
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        processes = []
        for worker in self._children:
            if worker.transport is not None:
                worker.transport.close()
            if worker.process is not None:
                processes.append(worker.process)
        await asyncio.gather(*(asyncio.to_thread(_end, process) for process in processes))

    # --- what children say ----------------------------------------------------------------------

    def said(self, worker: _ChildWorker, said: Any) -> None:
        """A frame came."""
        assert self._reports is not None
        if isinstance(said, ParcelFinished):
            self._early_deaths = 0
            self._reports.finished(worker, said.seconds, said.rest)
        elif isinstance(said, ParcelsRecalled):
            self._reports.recalled(worker, said.rests, _split(said.position))
        elif isinstance(said, HandlerRaised):
            self._raised(worker.parcels, said)
        elif isinstance(said, HandlerReady) and not worker.ready.done():
            if said.failure:
                worker.ready.set_exception(InvalidArgument(said.failure, hint=said.hint))
                worker.ready.exception()
            else:
                self.workers.append(worker)
                worker.ready.set_result(None)

    @staticmethod
    def _raised(parcels: Iterable[Parcel], said: HandlerRaised) -> None:
        parcel = next(parcel for parcel in parcels if parcel.number == said.number)
        messages = parcel.messages if said.index < 0 else [parcel.messages[said.index]]
        for message in messages:
            place = f"{message.topic}/{message.partition}@{message.offset}"
            error = HandlerError(
                f"The handler raised {said.kind} for {place}: {said.text}",
                operation="run",
                object=place,
                kind=said.kind,
                text=said.text,
                traceback=said.traceback,
            )
            parcel.errors.append((message, error))

    def lost(self, worker: _ChildWorker) -> None:
        """A child is gone."""
        if self._closing:
            return
        assert self._reports is not None
        self._children.discard(worker)
        if worker not in self.workers:  # whoever started it hears of it
            how = _how(worker)
            if not worker.ready.done():
                text = f"A worker process died{how} while it loaded {self._load.handler}."
                worker.ready.set_exception(WorkerDied(text, operation="run"))
                worker.ready.exception()
            return
        self.workers.remove(worker)
        number, finished = worker.progress()
        at_it = bool(worker.parcels) and worker.parcels[0].number == number
        self._early_deaths = 0 if at_it else self._early_deaths + 1
        died = WorkerDied(f"A worker process died{_how(worker)}.", operation="run")
        error = worker.why or died
        if not self._replace():
            self._reports.broke(error)
        self._reports.died(worker, finished if at_it else 0, error, again=True)

    def _replace(self) -> bool:
        if self._early_deaths >= EARLY_DEATHS_MAX:
            return False

        async def replace() -> None:
            try:
                await self._start()
            except Exception as error:  # noqa: BLE001 - whoever called run hears of it
                if self._reports is not None:
                    self._reports.broke(error)
            else:
                if self._reports is not None:
                    self._reports.came()

        task = asyncio.get_running_loop().create_task(replace())
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)
        return True


def _split(position: int) -> tuple[int, int]:
    """A parcel, and how many of its messages are finished."""
    return position >> FINISHED_BITS, position & ((1 << FINISHED_BITS) - 1)


def _begin(command: list[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """Start a child. Signals to the whole group of processes wait until it can ignore them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)  # of this thread; the child inherits it
    try:
        return subprocess.Popen(  # noqa: S603
            command, pass_fds=descriptors, env=_environment(), stdin=subprocess.DEVNULL
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """A child imports what this process can import, wherever it finds it."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)}


def _how(worker: _ChildWorker) -> str:
    """What became of a child that closed its socket, which it does by dying."""
    assert worker.process is not None
    try:
        code = worker.process.wait(_DEAD_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=_end, args=(worker.process,), daemon=True).start()
        return ""
    return f" of signal {-code}" if code < 0 else f" with exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
