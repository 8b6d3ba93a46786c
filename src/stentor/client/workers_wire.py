"""What travels between a program and its worker processes: over a socket pair, and in a page of memory.

    ┌───────────┬──────────────────┐
    │ length u32│ msgpack, an array│   …one frame after the other
    └───────────┴──────────────────┘

    to the child    LoadHandler, HandleParcel (one parcel, its messages by columns), RecallParcels
    to the parent   HandlerReady, HandlerRaised (at once), ParcelFinished, ParcelsRecalled

The page holds two numbers of 64 bits. One is written by the child after every message: the parcel's number, and how
many of it are finished. The other before every message of a leased parcel: how many are begun. So the parent knows how
far a child came that was killed, and notices one that hangs, even if something holds its GIL.
"""

from __future__ import annotations

import math
import signal
import struct
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import msgspec

from stentor.client.job import Job
from stentor.client.message import Block, Message
from stentor.client.workers_handler import HandlerName
from stentor.errors import InvalidArgument
from stentor.wire.rows import Headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stentor.client.workers_source import WorkItem

LENGTH: Final = struct.Struct("<I")
PAGE_BYTES: Final = 4096
GROUP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""They come to a program and its worker processes alike: the program knows what to do."""

FINISHED_BITS: Final = 24
"""How many messages of a parcel are finished; the parcel's number is above them."""


class _Frame(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One thing said."""


class LoadHandler(_Frame, frozen=True):
    """The first frame: what to call, and how."""

    handler: HandlerName
    batch: bool
    fatal: bool
    traced: str | None = None  # the name of the group, if calls have spans; empty: of none


class HandleParcel(_Frame, frozen=True):
    """A parcel."""

    number: int
    topic: str
    partition: int
    topic_id: int
    offsets: list[int] | int  # one number: the first, and the others follow one by one
    timestamps: list[int] | int
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None] | None
    attempts: list[int] | None = None  # of jobs: which attempt each is,
    fences: list[int] | None = None  # and its fence
    until: float | None = None  # nothing may be begun later, by the clock of `client.certain`


class RecallParcels(_Frame, frozen=True):
    """Give back what was not begun."""


class HandlerReady(_Frame, frozen=True):
    """The handler is loaded; or why it is not."""

    failure: str = ""
    hint: str = ""


class HandlerRaised(_Frame, frozen=True):
    """The handler raised."""

    number: int  # of the parcel
    index: int  # of the message; -1: of the whole batch
    kind: str
    text: str
    traceback: str


class ParcelFinished(_Frame, frozen=True):
    """A parcel is done with, but for what was not come to."""

    number: int
    seconds: float
    rest: int


class ParcelsRecalled(_Frame, frozen=True):
    """How many messages at the end of each parcel are given back."""

    rests: dict[int, int]
    position: int  # what the page said then: of all that was finished by then, what was raised has been said before


ToChild = LoadHandler | HandleParcel | RecallParcels
ToParent = HandlerReady | HandlerRaised | ParcelFinished | ParcelsRecalled

_to_child = msgspec.msgpack.Decoder(ToChild)
_to_parent = msgspec.msgpack.Decoder(ToParent)


def frame(said: ToChild | ToParent) -> bytes:
    """As bytes."""
    body = msgspec.msgpack.encode(said)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Frames, as their bytes come."""

    def __init__(self, *, at_child: bool) -> None:
        self._decoder: Any = _to_child if at_child else _to_parent
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[Any]:
        """The frames that are whole now."""
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, position)
            end = position + LENGTH.size + length
            if len(buffer) < end:
                break
            yield self._decoder.decode(bytes(buffer[position + LENGTH.size : end]))
            position = end
        del buffer[:position]


def pack(number: int, items: Sequence[WorkItem], until: float | None = None) -> HandleParcel:
    """A parcel by columns."""
    attempts: list[int] | None = None
    fences: list[int] | None = None
    if isinstance(items[0], Job):
        jobs = cast("list[Job]", items)
        messages, attempts = [job.message for job in jobs], [job.attempt for job in jobs]
        fences = [job.fence for job in jobs]
        follow = False  # those that are tried again, or are urgent, come between others
    else:
        messages = cast("list[Message]", items)
        follow = messages[-1].offset - messages[0].offset == len(messages) - 1
    first, last = messages[0], messages[-1]
    block = first._block  # noqa: SLF001 - the same package; what its messages share is copied once
    one = len(messages) == 1 or (attempts is None and block is last._block)  # noqa: SLF001 - the same
    offsets: list[int] | int = first.offset if follow else [message.offset for message in messages]
    if one and isinstance(block.timestamps, int):
        timestamps: list[int] | int = block.timestamps
    else:
        timestamps = [message.timestamp_us for message in messages]
    headers = None
    if not (one and block.headers is None):
        found: list[Headers | None] = [message.headers or None for message in messages]
        headers = found if any(found) else None
    return HandleParcel(
        number,
        block.topic,
        block.partition,
        block.topic_id,
        offsets,
        timestamps,
        [message.key for message in messages],
        [message.value for message in messages],
        headers,
        attempts,
        fences,
        until,
    )


class _AwayPort:
    """The port of a job that is in a worker process: whoever runs the handler settles it."""

    holder = b""

    def owns(self, holder: bytes, until: float = 0.0) -> bool:  # noqa: ARG002 - the shape is JobPort's
        """Nobody here can know better."""
        return True

    def may_begin(self, job: Job) -> bool:  # noqa: ARG002 - the same
        """It has begun."""
        return True

    def _refuse(self, job: Job, *_: Any, **__: Any) -> NoReturn:
        raise InvalidArgument(
            "A job cannot be settled or extended in a worker process.",
            hint="Return from the handler: that acknowledges the job. Raise an error, and it has failed.",
            object=job.queue,
        )

    def certain_until(self, job: Job) -> float:  # noqa: ARG002 - the same
        """It has begun."""
        return math.inf

    def is_expired(self, job: Job) -> bool:  # noqa: ARG002 - the same
        """It has begun."""
        return False

    async def sure(self, job: Job) -> bool:  # noqa: ARG002 - the same
        """It has begun."""
        return True

    begin = limit = finish = give_back = _refuse

    async def settled(self, job: Job) -> None:
        """The same."""
        self._refuse(job)


_AWAY: Final = _AwayPort()


def unpack(parcel: HandleParcel) -> Sequence[Message | Job]:
    """The same messages or jobs."""
    messages = _unpack_messages(parcel)
    if parcel.attempts is None:
        return messages
    fences = parcel.fences or repeat(0, len(messages))
    numbered = zip(messages, parcel.attempts, fences, strict=True)
    return [Job(message, attempt, _AWAY, fence=fence) for message, attempt, fence in numbered]


def _unpack_messages(parcel: HandleParcel) -> list[Message]:
    count = len(parcel.values)
    if isinstance(parcel.offsets, int):
        base = parcel.offsets
        offsets: Any = range(base, base + count)
        timestamps: Any = parcel.timestamps
        headers: Any = parcel.headers
    else:
        base, offsets = parcel.offsets[0], parcel.offsets
        deltas = [offset - base for offset in offsets]
        named = parcel.timestamps
        timestamps = named if isinstance(named, int) else dict(zip(deltas, named, strict=True))
        headers = None if parcel.headers is None else dict(zip(deltas, parcel.headers, strict=True))
    block = Block(parcel.topic, parcel.partition, base, timestamps, headers, parcel.topic_id)
    return list(map(Message, parcel.keys, parcel.values, offsets, repeat(block)))
