"""Questions about one partition: whom of its chain to ask, and whom next, until the deadline."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor import limits
from stentor.client.link import NotAsked
from stentor.errors import (
    ConnectionFailed,
    CoordinationUnavailable,
    EndUnknown,
    NotReady,
    PartitionNotFound,
    UnknownSwap,
)
from stentor.wire import messages

if TYPE_CHECKING:
    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.link import BrokerLink
    from stentor.errors import StentorError

STORE_PATIENCE_S: Final = 3.0
"""How long all brokers are asked again while none reaches the coordination store: etcd elects a leader in about a
second, and the brokers need another to notice."""


async def ask_member(core: ClientCore, request: Any, topic: str, deadline: Deadline, *, head_first: bool) -> Any:
    """Ask a member of the partition that a request names; ask another when that one is gone or cannot say."""
    asking = _Asking(core, topic, head_first)
    try:
        async with deadline.bound():
            while True:
                core.check_open()
                link = core.routing.member_link(
                    topic, request.topic_id, request.partition, asking.behind, head_first=head_first
                )
                asking.nobody = link is None
                if link is None:
                    await asking.pause_before_all()
                    continue
                try:
                    answer = await link.request(request)
                except NotReady as error:
                    await asking.refused(link, error)
                except ConnectionFailed:
                    await core.changes(limits.LINK_WATCH_S)
                except PartitionNotFound:
                    if len(core.links.brokers) < 2 or topic not in core.routes:
                        raise
                    await core.changes(limits.LINK_WATCH_S)
                else:
                    core.refusals.pop(topic, None)
                    return answer
    except TimeoutError as error:
        if (
            isinstance(request, messages.FindOffset)
            and head_first
            and core.link is not None
            and (asking.nobody or asking.why is not None)
        ):
            raise _end_unknown(core, request, topic, deadline, asking) from error
        raise core.late(type(request).__name__, deadline.seconds, asking.why) from error


async def ask_elsewhere(core: ClientCore, request: Any, home: BrokerLink, error: CoordinationUnavailable) -> Any:
    """A broker that does not reach the coordination store has changed nothing; another one may reach it (C29).

    If none does, all are asked again for a moment: a store that chooses another leader is away for about a second.
    """
    patient_until = core.loop.time() + STORE_PATIENCE_S
    asked = "" if home.broker is None else home.broker.id
    while True:
        for name, info in sorted(core.links.brokers.items()):
            if name == asked or not info.alive:
                continue
            try:
                async with asyncio.timeout(limits.LINK_OPEN_S):
                    while (link := core.links.to(name)) is None:
                        await core.changes(limits.LINK_WATCH_S)
            except (TimeoutError, ConnectionFailed):
                continue
            with suppress(CoordinationUnavailable):
                try:
                    return await link.request(request)
                except (ConnectionFailed, UnknownSwap) as lost:
                    check_repeatable(request, lost)
        if core.loop.time() > patient_until:
            raise error
        asked = ""
        await core.changes(limits.LINK_WATCH_S)


def check_repeatable(request: Any, error: ConnectionFailed | UnknownSwap) -> None:
    """Return if a request may be asked again after this error; else raise that its outcome is not known."""
    if messages.is_repeatable(request) or isinstance(error, NotAsked):
        return
    if isinstance(error, UnknownSwap):
        raise error
    name = type(request).__name__
    raise ConnectionFailed(
        f"{error.message} The answer to {name} was lost: it may or may not have been done.",
        hint="Find out whether it was done, then try again if need be.",
        operation=name,
        object=error.object,
    ) from error


class _Asking:
    """What the members of a chain have said so far to one question."""

    def __init__(self, core: ClientCore, topic: str, head_first: bool) -> None:
        self.behind: set[str] = set()  # members that said "not yet": the next one is asked first
        self.why: StentorError | None = None  # the last of what they said
        self.nobody = False  # no member of the chain can be reached
        self.sure_to = 0
        self._core = core
        self._topic = topic
        self._patient_until = core.loop.time() + (limits.NEW_HEAD_S if head_first else 0.0)
        self._pause_s = limits.LINK_WATCH_S

    async def pause_before_all(self) -> None:
        """Nobody is left to ask: all may be asked again after a pause, which grows."""
        self.behind.clear()
        await self._core.changes(self._pause_s)
        if self.why is not None:
            self._pause_s = min(2 * self._pause_s, limits.RECONNECT_DELAY_S_MAX)

    async def refused(self, link: BrokerLink, error: NotReady) -> None:
        """A member cannot say; the head is given a moment, if it is the one to ask."""
        self.why = self._core.refusals[self._topic] = error
        if isinstance(error, EndUnknown):
            self.sure_to = max(self.sure_to, error.sure_to)
        name = "" if link.broker is None else link.broker.id
        if name in self.behind or not name or self._core.loop.time() < self._patient_until:
            await self._core.changes(limits.LINK_WATCH_S)
        else:
            self.behind.add(name)


def _end_unknown(
    core: ClientCore, request: messages.FindOffset, topic: str, deadline: Deadline, asking: _Asking
) -> EndUnknown:
    """C30: no member could say for certain where the messages end, for as long as the caller allowed."""
    name = f"{topic}/{request.partition}"
    known = "No member of the chain can be reached" if asking.why is None else asking.why.message.rstrip(".")
    return EndUnknown(
        f"Where the committed messages of {name} end was not certain within {deadline.seconds:g} s ({known}).",
        hint="Bring the missing replicas back, or allow more time with timeout=. Reads and offsets() take"
        " stale='allow' for what is known to be committed.",
        operation="find the end",
        object=name,
        sure_to=max(asking.sure_to, core.seen.of(request.topic_id, request.partition).committed),
    )


async def find_offset(
    core: ClientCore, wish: messages.FindOffset, topic: str, deadline: Deadline
) -> messages.OffsetFound:
    """Where a position is, by a member that knows at least of what this client has seen (C24).

    Where the messages end is a question for the head: it knows of all that it has acknowledged to anybody,
    the others hear of it a moment later. A member that is not certain says so (C30), unless the wish allows it to be
    `stale`: then `sure` of the answer tells.
    """
    sight = core.seen.of(wish.topic_id, wish.partition)
    asked = msgspec.structs.replace(wish, seen=sight.committed, seen_epoch=sight.epoch)
    found: messages.OffsetFound = await ask_member(core, asked, topic, deadline, head_first=wish.at != "earliest")
    if found.committed < sight.committed and found.epoch > sight.epoch:
        core.seen.corrected(wish.topic_id, wish.partition, found.committed, found.epoch)
    else:
        core.seen.saw(wish.topic_id, wish.partition, found.committed, found.epoch)
    return found
