"""A worker process: `python -m stentor.client.workers_child SOCKET PAGE`, started by `client.workers_process`.

The main thread calls the handler. Another one reads the socket, so that messages that were not begun can be given back
while a handler is at work, and the process ends at once when its parent is gone.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from stentor.client.certain import boottime
from stentor.client.job import sendable, text_of
from stentor.client.workers_handler import load_handler
from stentor.client.workers_wire import (
    FINISHED_BITS,
    GROUP_SIGNALS,
    PAGE_BYTES,
    Frames,
    HandleParcel,
    HandlerRaised,
    HandlerReady,
    LoadHandler,
    ParcelFinished,
    ParcelsRecalled,
    RecallParcels,
    ToParent,
    frame,
    unpack,
)
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor.client.job import Job
    from stentor.client.message import Message

_TEXT_MAX = 65_536  # characters of what an error says
_READ_BYTES = 1 << 20  # at once: a parcel of small messages is less


class _ChildParcel:
    """Messages that this process has."""

    def __init__(self, parcel: HandleParcel) -> None:
        self.number = parcel.number
        self.messages = unpack(parcel)
        self.until = math.inf if parcel.until is None else parcel.until
        self.left: Iterator[Message | Job] = iter(self.messages)
        self.given_back = 0
        self.unbegun = 0  # the message that was not begun, because it was not certain any more that it may


class WorkerChild:
    """One worker process."""

    def __init__(self, connection: socket.socket, page: int) -> None:
        self._connection = connection
        self._finished = memoryview(mmap.mmap(page, PAGE_BYTES)).cast("Q")
        self._inbox: queue.SimpleQueue[LoadHandler | _ChildParcel] = queue.SimpleQueue()
        self._parcels: list[_ChildParcel] = []  # not finished
        self._lock = threading.Lock()  # taking back, finishing, and writing to the socket
        self._halted = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        """Until the parent is gone."""
        threading.Thread(target=self._read, name="stentor-read", daemon=True).start()
        load = self._inbox.get()
        assert isinstance(load, LoadHandler)
        try:
            handler = self._load(load)
        except StentorError as error:
            self._say(HandlerReady(error.message, error.hint))
            return
        self._say(HandlerReady())
        while True:
            parcel = self._inbox.get()
            assert isinstance(parcel, _ChildParcel)
            began = time.perf_counter()
            self._handle(handler, parcel, load)
            self._finish(parcel, time.perf_counter() - began)

    def _load(self, load: LoadHandler) -> Callable[..., Any]:
        handler = load_handler(load.handler)
        if load.traced is not None:
            from stentor.client.tracing import Tracing

            # The handler's module has set up whatever takes the spans, or nothing does.
            handler = Tracing().traced(handler, load.traced or None)
        if not inspect.iscoroutinefunction(handler):
            return handler
        loop = self._loop = asyncio.new_event_loop()
        return lambda given: loop.run_until_complete(handler(given))

    # --- the thread that reads ------------------------------------------------------------------

    def _read(self) -> None:
        frames = Frames(at_child=True)
        try:
            while data := self._connection.recv(_READ_BYTES):
                self._hear(frames.feed(data))
        finally:
            os._exit(0)  # whatever the handler does: nobody could be told

    def _hear(self, frames: Iterator[Any]) -> None:
        for said in frames:
            if isinstance(said, RecallParcels):
                self._recall()
            elif isinstance(said, HandleParcel):
                parcel = _ChildParcel(said)
                with self._lock:
                    self._parcels.append(parcel)
                self._inbox.put(parcel)
            else:
                self._inbox.put(said)

    def _recall(self) -> None:
        with self._lock:
            rests = {}
            for parcel in self._parcels:
                rest = len(list(parcel.left))  # in one step: whoever works on it finds it used up
                parcel.given_back += rest
                rests[parcel.number] = rest
            self._connection.sendall(frame(ParcelsRecalled(rests, self._finished[0])))

    # --- the thread that works ------------------------------------------------------------------

    def _say(self, said: ToParent) -> None:
        with self._lock:
            self._connection.sendall(frame(said))

    def _finish(self, parcel: _ChildParcel, seconds: float) -> None:
        with self._lock:
            self._parcels.remove(parcel)
            rest = len(list(parcel.left)) + parcel.unbegun  # an error, or doubt, ended it
            self._connection.sendall(frame(ParcelFinished(parcel.number, seconds, rest)))

    def _handle(self, handler: Callable[..., Any], parcel: _ChildParcel, load: LoadHandler) -> None:
        finished, number = self._finished, parcel.number << FINISHED_BITS
        finished[0] = number
        if self._halted:
            return
        if load.batch:
            self._handle_batch(handler, parcel, load, number)
            return
        leased = parcel.until != math.inf
        for index, message in enumerate(parcel.left, 1):
            if leased:
                if boottime() >= parcel.until:
                    parcel.unbegun = 1
                    return
                finished[1] = number + index
            try:
                handler(message)
            except Exception as error:  # noqa: BLE001 - as above
                self._raised(parcel, index - 1, error)
                if load.fatal:
                    self._halted = True
                    return
            finished[0] = number + index

    def _handle_batch(self, handler: Callable[..., Any], parcel: _ChildParcel, load: LoadHandler, number: int) -> None:
        if boottime() >= parcel.until:
            return  # what is left goes back, and somebody is asked
        with self._lock:
            taken = list(parcel.left)
        if not taken:
            return
        self._finished[1] = number + len(parcel.messages)
        try:
            handler(parcel.messages)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is told
            self._raised(parcel, -1, error)
            self._halted = load.fatal
        self._finished[0] = number + len(parcel.messages)

    def _raised(self, parcel: _ChildParcel, index: int, error: Exception) -> None:
        trace = sendable("".join(traceback.format_exception(error)))[-_TEXT_MAX:]
        self._say(HandlerRaised(parcel.number, index, type(error).__name__, text_of(error)[:_TEXT_MAX], trace))


def main(connection: str, page: str) -> None:
    """What the parent starts."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)  # what the handler starts shall hear them
    WorkerChild(socket.socket(fileno=int(connection)), int(page)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
