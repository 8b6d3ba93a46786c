"""The small interface that every system implements.

`start` runs in the harness; everything else runs in the role processes. A system implements the parts
that apply to it and says why about the rest.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from bench.model import NotAvailableError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from bench.messages import Pool
    from bench.model import Case, Spec
    from bench.processes import Processes, Server

SINGLE_WARM_UP = 100


class Publisher(Protocol):
    """Sends messages; what was sent counts once `flush` has returned."""

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        """Publishes the messages, `batch` at a time; may return before they are acknowledged."""

    def flush(self) -> None:
        """Returns when every message sent so far is acknowledged as its durability says."""

    def pause(self, seconds: float) -> None:
        """Waits, while acknowledgements go on coming in."""


class Reader(Protocol):
    """Reads a topic from its start, message by message, and waits for more at its end."""

    partitions: list[int]
    """The partition of each message taken, kept only where there are several."""

    def take(self, count: int, keys: list[bytes], values: list[bytes], stamps: list[int] | None = None) -> None:
        """Appends exactly `count` messages; `stamps` gets the monotonic time each was handed over."""


class Subscriber(Protocol):
    """One of many live subscribers in an asyncio process."""

    async def take(self, count: int, keys: list[bytes], values: list[bytes]) -> None:
        """Appends exactly `count` messages."""


class System:
    """A system under test. The defaults say that a part does not apply."""

    name: ClassVar[str]
    has_reader: ClassVar[bool] = True

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        """Starts a fresh server for the case with its data below `directory`."""
        raise NotImplementedError

    def publisher(self, spec: Spec) -> Publisher:
        raise NotAvailableError(f"{self.name} has no publisher")

    def reader(self, spec: Spec) -> Reader:
        raise NotAvailableError(f"{self.name} has no reader")

    def publish_times(self, spec: Spec, pool: Pool) -> list[int]:
        """Nanoseconds of each publish, one after the other, each waiting for its acknowledgement."""
        raise NotAvailableError(f"{self.name} has no single publish")

    async def subscriber(self, spec: Spec) -> Subscriber:
        raise NotAvailableError(f"{self.name} has no fan-out")

    def native(self, case: Case, server: Server, seconds: float) -> float:
        """Messages per second of the system's own benchmark program."""
        raise NotAvailableError(f"{self.name} has no benchmark program of its own")


def paused(seconds: float) -> None:
    time.sleep(seconds)


def event_loop(fast: bool) -> AbstractEventLoop:
    """A loop for the tuned (uvloop) or the stock (asyncio) client."""
    import asyncio

    if fast:
        import uvloop

        loop: AbstractEventLoop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def time_publishes(publish: Callable[[bytes, bytes], Any], pool: Pool, seconds: float) -> list[int]:
    """Times `publish(key, value)` call by call; the first calls warm up and do not count."""
    times: list[int] = []
    clock = time.perf_counter_ns
    for key, value in zip(pool.keys[:SINGLE_WARM_UP], pool.values, strict=False):
        publish(key, value)
    end = clock() + int(seconds * 1e9)
    for key, value in zip(pool.keys, pool.values, strict=True):
        start = clock()
        publish(key, value)
        now = clock()
        times.append(now - start)
        if now > end:
            break
    return times


async def time_publishes_async(
    publish: Callable[[bytes, bytes], Awaitable[Any]], pool: Pool, seconds: float
) -> list[int]:
    """The same inside a running loop, so the loop's start is not in the figure."""
    times: list[int] = []
    clock = time.perf_counter_ns
    for key, value in zip(pool.keys[:SINGLE_WARM_UP], pool.values, strict=False):
        await publish(key, value)
    end = clock() + int(seconds * 1e9)
    for key, value in zip(pool.keys, pool.values, strict=True):
        start = clock()
        await publish(key, value)
        now = clock()
        times.append(now - start)
        if now > end:
            break
    return times
