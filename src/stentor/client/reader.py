"""One partition of a subscription: how far it was received and taken, and what its stream brings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.wire import frames, messages

if TYPE_CHECKING:
    from stentor.client.link import BrokerLink
    from stentor.client.subscription_core import SubscriptionCore


class Event(msgspec.Struct, frozen=True):
    """Something a subscriber should know besides messages."""

    # "skipped", "compacted", "topic_found", "topic_gone"; of a group's member: "assigned", "revoked", "lost"
    kind: str
    topic: str
    partition: int
    # skipped: the first offset not delivered; compacted: where the range begins; revoked, lost: the first one that is
    # not committed
    first_offset: int = 0
    # skipped, assigned: the first offset delivered; compacted: the one after the range; revoked, lost: the first one
    # that was not handed out
    next_offset: int = 0
    messages: int = 0  # compacted: how many messages of the range were not delivered, at most
    # skipped: a memory topic was lost with its brokers and began anew. Its offsets go on far above all that it had, so
    # nobody knows how many messages were between.
    unknown: bool = False


class Delivery(msgspec.Struct, frozen=True):
    """Whole batches of one partition, as they came."""

    reader: Reader
    body: bytes
    next_offset: int
    removed: int = 0  # messages of its range, at most, that a compaction has removed
    overtakes: bool = False  # it did so while the reader was on its way, not before it began
    floor: int = 0  # what is below was received before: a compaction may have merged it with what comes now


def joined(events: list[Event]) -> list[Event]:
    """The same events; what compactions have removed from ranges next to each other is one."""
    found: list[Event] = []
    open_ranges: dict[tuple[str, int], int] = {}  # where in `found` the last one of each partition is
    for event in events:
        place = open_ranges.get((event.topic, event.partition)) if event.kind == "compacted" else None
        if place is not None and found[place].next_offset == event.first_offset:
            whole = msgspec.structs.replace(
                found[place], next_offset=event.next_offset, messages=found[place].messages + event.messages
            )
            found[place] = whole
            continue
        if event.kind == "compacted":
            open_ranges[event.topic, event.partition] = len(found)
        found.append(event)
    return found


class Reader:
    """One partition of a subscription."""

    def __init__(self, owner: SubscriptionCore, topic: str, topic_id: int, partition: int) -> None:
        self.owner = owner
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.held = False  # the application named the offset at which it begins
        self.start = 0  # the first offset the application wants
        self.end: int | None = None
        self.sure = True  # nothing was committed beyond the end when it was found
        self.received = 0  # the offset after the last one received
        self.taken = 0  # the offset after the last one the application took
        self.committed = 0  # the partition's commit point, as last heard
        self.begins = 0  # where a log began that was lost with its brokers: what is before it is nobody's to take
        self.link: BrokerLink | None = None  # where the stream comes from
        self.stream_id: int | None = None
        self.finished = False
        self.owed = 0  # bytes taken but not granted again yet
        self.waiting = 0  # bytes received that the application has not taken
        self.lost_at: float | None = None  # when its stream ended, until another one is heard
        self.was_current = False  # it has once had everything that was committed, or began at a place of its own
        self.was_overtaken = False  # by a compaction, since it last had everything
        self.dropped = False  # nobody wants any more of it, whatever is on its way
        self.refused: set[str] = set()  # members that could not serve it: others are asked first

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.partition}"

    # --- what the link reports ------------------------------------------------------------------

    def delivered(self, body: memoryview) -> None:
        committed, epoch, removed, next_offset = frames.DELIVERY.unpack_from(body)
        self.state(committed, epoch)
        if removed:
            self.owner.overtaken(self, removed, next_offset)
        floor, self.received = self.received, next_offset
        self.waiting += len(body) - frames.DELIVERY.size
        overtakes = removed > 0 and self.was_current
        self.owner.put(Delivery(self, bytes(body[frames.DELIVERY.size :]), next_offset, removed, overtakes, floor))
        if next_offset >= committed:
            self.was_current, self.was_overtaken = True, False

    def state(self, committed: int, epoch: int) -> None:
        self.lost_at = None
        if self.refused:
            self.refused.clear()  # it is served; whoever refused before may be able to when it must move again
        if committed > self.committed:
            self.committed = committed
            self.owner.core.seen.saw(self.topic_id, self.partition, committed, epoch)

    def ended(self, ended: messages.StreamEnded) -> None:
        self.stream_id = None
        self.lost_at = self.lost_at or self.owner.core.loop.time()
        if ended.failure is None:
            self.finished = True
            self.owner.reader_finished()
            return
        error = messages.raised(ended.failure)
        if self.owner.streams.will_be_back(self, error) or self.owner.streams.doubts(self, error):
            return
        self.owner.reader_failed(self, error)

    def moves(self, link: BrokerLink) -> None:
        """Its stream comes from here now. Until that is heard, it is as silent as it was."""
        self.lost_at = self.silent_since()
        self.owed, self.link = 0, link

    def silent_since(self) -> float | None:
        """Since when no broker feeds it, by the loop's clock; None while one does."""
        link = self.link
        if self.lost_at is not None or link is None or link.alive:
            return self.lost_at
        return link.lost_at

    @property
    def lag(self) -> int:
        """Committed messages that the application has not taken."""
        return max(0, self.committed - max(self.taken, self.begins))
