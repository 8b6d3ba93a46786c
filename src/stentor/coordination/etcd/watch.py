"""Watching a prefix of etcd's keys, for as long as somebody listens.

A watch is a stream: one request, and a line of JSON for every group of changes. Streams end, break,
or go quiet without breaking, and none of that may reach the consumer as anything but a pause:

* A stream that breaks is opened again, at whatever endpoint answers, from the last revision + 1.
* A stream that is quiet for COORDINATION_POLL_S makes us ask its endpoint for a current read, with a
  deadline. A paused or cut-off member does not answer, and the stream moves to another one. (etcd
  can be told to report progress on the stream itself, but does so every ten minutes.)
* A stream that is quiet although its endpoint answers may be stuck somewhere between. It is replaced
  after COORDINATION_STREAM_S in any case; replacing costs one request and leaves no gap.
* If the history from there was compacted, all keys are read anew and given as a Resync. The same if
  the store's revision is behind ours: it was restored from a backup, and what we know is not there.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from stentor import limits
from stentor.coordination.etcd import messages
from stentor.coordination.etcd.gateway import Broken, Refusal
from stentor.errors import StentorError
from stentor.ports import Changed, Resync
from stentor.transport.dial import Backoff, jittered_s

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from stentor.coordination.etcd.gateway import Gateway, GatewayStream
    from stentor.coordination.etcd.keys import Keys
    from stentor.ports import Range

_AGE_JITTER: Final = 0.2
_NOT_ALLOWED: Final = ("permission denied", "auth token", "PermissionDenied", "Unauthenticated")

logger = logging.getLogger(__name__)


class Counts(msgspec.Struct):
    """What all watches of a store did."""

    open: int = 0
    reconnects: int = 0
    resyncs: int = 0


class _Gap(Exception):  # noqa: N818 - never leaves this module
    """The stream cannot go on from where it was."""


async def watch(
    gateway: Gateway, keys: Keys, prefix: str, revision: int, read: Callable[[str], Awaitable[Range]], counts: Counts
) -> AsyncGenerator[Changed | Resync, None]:
    """Every change after `revision`, in order."""
    counts.open += 1
    backoff, gap = Backoff(), False
    loop = asyncio.get_running_loop()
    try:
        while not gateway.closed:
            began = loop.time()
            try:
                if gap:
                    everything = await read(prefix)
                    revision, gap = everything.revision, False
                    counts.resyncs += 1
                    yield Resync(everything.entries, revision)
                async with aclosing(_changes(gateway, keys, prefix, revision)) as changes:
                    async for change in changes:
                        revision = change.revision
                        yield change
            except _Gap as reason:
                logger.info("a watch reads all keys again: %s", reason)
                gap = True
            except (Broken, Refusal, StentorError) as error:
                if isinstance(error, Refusal):
                    gateway.forget_token()
                counts.reconnects += 1
                logger.debug("a watch reconnects: %s", error)
                if loop.time() - began > limits.LINK_PROVEN_S:
                    backoff.reset()
                await gateway.pause(backoff.next_s())
    finally:
        counts.open -= 1


async def _changes(gateway: Gateway, keys: Keys, prefix: str, revision: int) -> AsyncGenerator[Changed, None]:
    """The changes of one stream, until it breaks or is old."""
    loop = asyncio.get_running_loop()
    begin = keys.full(prefix)
    watched = {"key": begin, "range_end": messages.end_of(begin), "start_revision": str(revision + 1)}
    async with gateway.stream(messages.WATCH, {"create_request": watched}) as stream:
        age_s = limits.COORDINATION_STREAM_S
        old_at = loop.time() + jittered_s((1 - _AGE_JITTER) * age_s, (1 + _AGE_JITTER) * age_s)
        lines = _Lines()
        while loop.time() < old_at:
            data = await stream.read(limits.COORDINATION_POLL_S)
            if data is None:
                await _poll(gateway, stream, begin, revision)
                continue
            for line in lines.feed(data):
                for change in _by_revision(keys, _checked(gateway, line)):
                    revision = change.revision
                    yield change


async def _poll(gateway: Gateway, stream: GatewayStream, key: bytes, revision: int) -> None:
    """Ask the stream's endpoint for something that only a member in touch with the others can answer."""
    request = messages.encode({"key": key, "count_only": True})
    deadline = asyncio.get_running_loop().time() + limits.COORDINATION_POLL_TIMEOUT_S
    answer = await gateway.ask(stream.endpoint, messages.RANGE, request, messages.RangeAnswer, deadline)
    if answer.header.revision < revision:
        raise _Gap(f"the store is at revision {answer.header.revision}, before {revision}")


def _checked(gateway: Gateway, line: bytes) -> messages.WatchAnswer:
    """A line that brings changes or nothing; anything else ends the stream."""
    try:
        said = messages.decode(line, messages.WatchLine)
    except ValueError:
        raise Broken("a watch is answered, but not as etcd does", sent=True) from None
    answer = said.result
    if answer is None:
        reason = said.error.message if said.error is not None else "a line without a result"
        raise Broken(reason, sent=True)
    if answer.compact_revision:
        raise _Gap(f"the history before revision {answer.compact_revision} is compacted")
    if answer.canceled:
        if any(words in answer.cancel_reason for words in _NOT_ALLOWED):
            # Also said of a token that has expired: the next stream shows a new one.
            gateway.forget_token()
        raise Broken(answer.cancel_reason or "etcd ended the watch", sent=True)
    return answer


def _by_revision(keys: Keys, answer: messages.WatchAnswer) -> Iterator[Changed]:
    """The events of a line, those of one revision together."""
    change: Changed | None = None
    for event in answer.events:
        revision = event.kv.mod_revision
        if change is None or change.revision != revision:
            if change is not None:
                yield change
            change = Changed(revision, [], [])
        if event.type == "DELETE":
            change.deleted.append(keys.name(event.kv.key))
        else:
            change.put.append(keys.entry(event.kv))
    if change is not None:
        yield change


class _Lines:
    """Bytes in, whole lines out."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest = bytearray(rest)
        else:
            self._rest += rest
        if len(self._rest) > limits.COORDINATION_ANSWER_BYTES_MAX:
            raise _Gap("a group of changes is too large for one line")
        return [line for line in lines if line.strip()]
