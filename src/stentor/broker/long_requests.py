"""Requests that look at very much: slices of each in turn, however many there are (C35).

A list of all groups, topics or jobs takes a hundred milliseconds where there are many, and a client may ask for 64 of
them at once. So such a request is a *walk*, a generator that yields after about a millisecond of work. All walks
together get what one piece of background work gets in a turn of the loop (`slices`). Each connection has one line:

    connection a   walk ─ walk ─ walk          a piece of the first walk of a, then of b, then of a, …
    connection b   walk                        a line moves on when its first walk has ended

So whoever asks for much waits for it, and delays others by no more than a piece. What waits in line has not begun, and
holds nothing. A walk goes on while the broker changes: it copies the keys that it walks over, and leaves out what is
gone when it comes to it. What an answer lists is encoded as the walk comes by, so that many small objects are not alive
together, for which the garbage collector would stop the loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence

    from stentor.broker.loop_watch import LoopWatch
    from stentor.broker.slices import Slices

T = TypeVar("T")

PIECE: Final = 32
"""Things of a list that one piece looks at or encodes, if each takes some microseconds."""

_SORTED_AT_ONCE: Final = 2_048  # names: less than a millisecond
_ENCODED_AT_ONCE: Final = 64 * 1024  # bytes


class _Walk(NamedTuple):
    pieces: Generator[None, None, Any]
    outcome: asyncio.Future[Any]


class LongRequests:
    """The walks of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slices: Slices, watch: LoopWatch) -> None:
        self._loop = loop
        self._slices = slices
        self._watch = watch
        self._lines: OrderedDict[object, deque[_Walk]] = OrderedDict()  # by who asks, whose turn is next first
        self._walking = False

    async def walk(self, whose: object, pieces: Generator[None, None, T]) -> T:
        """Return what a walk returns, or raise what it raises. `whose`: the connection that asks."""
        walk = _Walk(pieces, self._loop.create_future())
        self._lines.setdefault(whose, deque()).append(walk)
        if not self._walking:
            self._walking = True
            self._slices.begin("long requests", self._pieces(), self._over)
        found: T = await walk.outcome
        return found

    def _over(self) -> None:
        self._walking = False

    def _pieces(self) -> Iterator[Callable[[], None]]:
        while self._lines:
            yield self._go_on

    def _go_on(self) -> None:
        """Do a piece of the first walk of the line whose turn it is."""
        whose, line = self._lines.popitem(last=False)
        if self._is_over(line[0]):
            line.popleft()
        if line:
            self._lines[whose] = line

    def _is_over(self, walk: _Walk) -> bool:
        """Do a piece; return whether it was the last."""
        if walk.outcome.done():  # nobody waits for it any more
            walk.pieces.close()
            return True
        try:
            self._watch.run("a long request", next, walk.pieces)
        except StopIteration as end:
            walk.outcome.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            walk.outcome.set_exception(error)
        else:
            return False
        return True


class Shared(Generic[T]):
    """An answer that is the same for all who ask. Whoever asks while one is being made shares the next one: it shows
    everything that happened before they asked.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._making: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the answer, or raise why there is none."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._after(self._making))
            self._next.add_done_callback(self._made)
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._making, self._next = self._next, None
        return await self._make()

    def _made(self, task: asyncio.Task[T]) -> None:
        if self._making is task:
            self._making = None
        if self._next is task:  # it was cancelled before it began
            self._next = None
        if not task.cancelled():
            task.exception()  # looked at: those who asked may be gone


# --- parts of walks -----------------------------------------------------------------------------


def in_pieces(items: Sequence[T], size: int = PIECE) -> Iterator[Sequence[T]]:
    """Yield a list a few items at a time."""
    for first in range(0, len(items), size):
        yield items[first : first + size]


def sorting(items: list[str]) -> Generator[None, None, list[str]]:
    """Return names in order."""
    runs = []
    for some in in_pieces(items, _SORTED_AT_ONCE):
        runs.append(sorted(some))
        yield
    if len(runs) <= 1:
        return runs[0] if runs else []
    found: list[str] = []
    for name in heapq.merge(*runs):
        found.append(name)
        if len(found) % 256 == 0:
            yield
    return found


def encoded(value: Any) -> Any:
    """Return a part of an answer as it will be sent; `Any`, since it stands where the answer names its type."""
    return msgspec.Raw(messages.encode(value))


def encoding(answer: Any) -> Generator[None, None, bytes]:
    """Return an answer as it is sent. Long lists in it, or in what it holds, are encoded in pieces."""
    return messages.encode((yield from _with_encoded_lists(answer)))


def _with_encoded_lists(value: Any) -> Generator[None, None, Any]:
    if isinstance(value, list):
        if len(value) <= PIECE or isinstance(value[0], msgspec.Raw):
            return value
        found, size = [], 0
        for number, each in enumerate(value, 1):
            found.append(encoded(each))
            size += len(found[-1])
            if number % PIECE == 0 or size > _ENCODED_AT_ONCE:
                size = 0
                yield
        return found
    if isinstance(value, dict):
        return dict(zip(value, (yield from _each(list(value.values()))), strict=True))
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        before = [getattr(value, name) for name in names]
        after = yield from _each(before)
        changed = {name: new for name, old, new in zip(names, before, after, strict=True) if new is not old}
        return msgspec.structs.replace(value, **changed) if changed else value
    return value


def _each(values: list[Any]) -> Generator[None, None, list[Any]]:
    found = []
    for value in values:
        found.append((yield from _with_encoded_lists(value)))  # noqa: PERF401 - a comprehension cannot yield
    return found
