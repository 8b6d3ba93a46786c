"""Requests that look at very much: slices of each in turn, however many there are (C35).

A list of all groups, topics or jobs takes a hundred milliseconds where there are many, and a client may ask for 64 of
them at once. So such a request is a *walk*, a generator that yields after about a millisecond of work. All walks
together get what one piece of background work gets in a turn of the loop (`slices`). Each connection has one line:

    connection a   walk ─ walk ─ walk          a piece of the first walk of a, then of b, then of a, …
    connection b   walk                        a line moves on when its first walk has ended

So whoever asks for much waits for it, and delays others by no more than a piece. What waits in line has not begun, and
holds nothing. A walk goes on while the broker changes: it copies the keys that it walks over, and leaves out what is
gone when it comes to it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterator

    from stentor.broker.loop_watch import LoopWatch
    from stentor.broker.slices import Slices

T = TypeVar("T")


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
