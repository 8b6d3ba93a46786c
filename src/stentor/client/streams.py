"""The streams of a subscription: opened at a member of each partition's chain, moved to another one, granted credit.

After a lost link every stream is opened again at the offset after the last one received: no gap, no repeat. A member
that refuses a stream is not asked again before the others; all that were refused ask again together, once in a while.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.errors import Closed, NotReady, OffsetOutOfRange, OutOfDescriptors, PartitionNotFound, StentorError
from stentor.wire import messages

if TYPE_CHECKING:
    import asyncio

    from stentor.client.core import ClientCore
    from stentor.client.link import BrokerLink
    from stentor.client.reader import Reader
    from stentor.client.subscription_core import SubscriptionCore


class Streams:
    """The streams of one subscription's readers."""

    def __init__(self, core: ClientCore, owner: SubscriptionCore) -> None:
        self._core = core
        self._owner = owner
        self._checking: set[asyncio.Task[None]] = set()  # whether the starts that members refused are beyond the end
        self._retry: asyncio.TimerHandle | None = None  # when readers that were refused ask again, all at once
        self._telling: asyncio.TimerHandle | None = None  # when the broker hears what little was taken

    # --- opening and closing --------------------------------------------------------------------

    def open(self, reader: Reader) -> None:
        """Open it at a member of the chain; if none can be reached yet, a new link will tell."""
        link = self._link_for(reader)
        if reader.finished or link is None:
            return
        reader.moves(link)
        reader.stream_id = link.open_stream(
            messages.OpenStream(
                topic_id=reader.topic_id,
                partition=reader.partition,
                start=reader.received,
                end=reader.end,
                credit=max(1, self._owner.credit - reader.waiting),
                seen=reader.committed,
                subtree=self._owner.subtree,
                copies=self._owner.copies,
            ),
            reader,
        )

    def _link_for(self, reader: Reader) -> BrokerLink | None:
        """A member that did not refuse; if none of those is linked, all may be asked again."""
        routing = self._core.routing
        link = routing.member_link(reader.topic, reader.topic_id, reader.partition, reader.refused)
        if link is None and reader.refused:
            reader.refused.clear()
            link = routing.member_link(reader.topic, reader.topic_id, reader.partition)
        return link

    def close(self, reader: Reader) -> None:
        """End its stream, if it has one."""
        link = reader.link
        if link is not None and reader.stream_id is not None:
            link.close_stream(reader.stream_id)
        reader.stream_id = None

    def end(self) -> None:
        """End all of them, and everything that was to be done for them."""
        for timer in (self._retry, self._telling):
            if timer is not None:
                timer.cancel()
        for task in self._checking:
            task.cancel()
        for reader in self._owner.readers.values():
            self.close(reader)

    # --- moving ---------------------------------------------------------------------------------

    def reopen(self) -> None:
        """Streams whose link is gone, or whose broker left the chain, come from another member (C25)."""
        if self._owner.closed:
            return
        for reader in self._owner.readers.values():
            if reader.finished or (reader.stream_id is not None and self._is_well(reader)):
                continue
            self.close(reader)
            self.open(reader)

    def _is_well(self, reader: Reader) -> bool:
        link, route = reader.link, self._core.routes.get(reader.topic)
        if link is None or not link.alive or link.broker is None:
            return False
        if route is None or route.id != reader.topic_id or len(self._core.links.brokers) < 2:
            return True
        return link.broker.id in route.partitions[reader.partition].chain

    def will_be_back(self, reader: Reader, error: StentorError) -> bool:
        """A member that cannot serve now: ask again in a moment, another one if there is one."""
        route = self._core.routes.get(reader.topic)
        unknown = isinstance(error, PartitionNotFound) and len(self._core.links.brokers) > 1
        passing = isinstance(error, Closed | NotReady | OutOfDescriptors)  # Closed: the broker stops, or this copy goes
        if not passing and not (unknown and route is not None and route.id == reader.topic_id):
            return False
        self._try_another(reader)
        return True

    def _try_another(self, reader: Reader) -> None:
        if reader.link is not None and reader.link.broker is not None:
            reader.refused.add(reader.link.broker.id)
        if self._retry is None and not self._owner.closed:
            self._retry = self._core.loop.call_later(limits.LINK_WATCH_S, self._ask_again)

    def _ask_again(self) -> None:
        self._retry = None
        self.reopen()

    def doubts(self, reader: Reader, error: StentorError) -> bool:
        """A member says that its messages end before the start. It may be behind: the head is asked first (C24)."""
        ends_before = isinstance(error, OffsetOutOfRange) and reader.received > (error.end or 0)
        if ends_before and not self._owner.closed:
            task = self._core.loop.create_task(self._check_end(reader, error))
            self._checking.add(task)
            task.add_done_callback(self._checking.discard)
        return ends_before

    async def _check_end(self, reader: Reader, refusal: StentorError) -> None:
        """Ask another member if the partition does hold the start; tell the application if it does not."""
        owner = self._owner
        try:
            found = await owner.places.resolve(reader, "latest", self._core.deadline(None), stale=False)
        except StentorError as error:
            owner.reader_failed(reader, error)
            return
        committed = found.committed
        if reader.received > committed:
            start = refusal.detail.get("start", 0)
            refusal.message = f"{reader.name} holds offsets {start} to {committed}; {reader.received} was asked for."
            refusal.detail["end"] = committed
            owner.reader_failed(reader, refusal)
        elif not owner.closed:
            reader.committed = max(reader.committed, committed)
            self._try_another(reader)

    # --- credit ---------------------------------------------------------------------------------

    def grant(self, reader: Reader, size: int) -> None:
        """The application took this much; tell the broker, a quarter of the window at a time, or after a moment."""
        reader.owed += size
        reader.waiting -= size
        link = reader.link
        if reader.stream_id is None or link is None:
            return
        if reader.owed >= self._owner.credit // 4:
            link.grant(reader.stream_id, reader.owed)
            reader.owed = 0
        elif self._telling is None and not self._owner.closed:
            self._telling = self._core.loop.call_later(limits.CREDIT_TOLD_S, self._tell_taken)

    def _tell_taken(self) -> None:
        """Operators see lag by the credit that came back: what was taken is told soon, however little it is."""
        self._telling = None
        for reader in self._owner.readers.values():
            if reader.owed and reader.stream_id is not None and reader.link is not None:
                reader.link.grant(reader.stream_id, reader.owed)
                reader.owed = 0
