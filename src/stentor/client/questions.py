"""Questions about one partition: whom of its chain to ask, and whom next, until the deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stentor import limits
from stentor.errors import ConnectionFailed, NotReady, PartitionNotFound

if TYPE_CHECKING:
    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.errors import StentorError
    from stentor.wire import messages


async def ask_member(core: ClientCore, request: Any, topic: str, deadline: Deadline, *, head_first: bool) -> Any:
    """Ask a member of the partition that a request names; ask another when that one is gone."""
    behind: set[str] = set()  # members that said "not yet": the next one is asked first
    patient_until = core.loop.time() + (limits.NEW_HEAD_S if head_first else 0.0)
    why: StentorError | None = None
    try:
        async with deadline.bound():
            while True:
                core.check_open()
                link = core.member_link(topic, request.topic_id, request.partition, behind, head_first=head_first)
                if link is None:
                    behind.clear()
                    await core.changes(limits.LINK_WATCH_S)
                    continue
                try:
                    answer = await core.ask_link(link, request)
                except NotReady as error:
                    why = core.refusals[topic] = error
                    name = "" if link.broker is None else link.broker.id
                    if name in behind or not name or core.loop.time() < patient_until:
                        await core.changes(limits.LINK_WATCH_S)
                    else:
                        behind.add(name)
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
        raise core.late(type(request).__name__, deadline.seconds, why) from error


async def find_offset(
    core: ClientCore, wish: messages.FindOffset, topic: str, deadline: Deadline
) -> messages.OffsetFound:
    """Where a position is, by a member that knows at least of what this client has seen (C24).

    Where the messages end is a question for the head: it knows of all that it has acknowledged to anybody,
    the others hear of it a moment later.
    """
    sight = core.seen.of(wish.topic_id, wish.partition)
    asked = msgspec.structs.replace(wish, seen=sight.committed, seen_epoch=sight.epoch)
    found: messages.OffsetFound = await ask_member(core, asked, topic, deadline, head_first=wish.at != "earliest")
    if found.committed < sight.committed and found.epoch > sight.epoch:
        core.seen.corrected(wish.topic_id, wish.partition, found.committed, found.epoch)
    else:
        core.seen.saw(wish.topic_id, wish.partition, found.committed, found.epoch)
    return found
