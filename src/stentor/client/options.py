"""The words and options of public calls, as types: what a type checker and an editor know of them.

Every word is also checked while the program runs, by whoever takes it; these types only say it earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from stentor.client.positions import Place, Stale
    from stentor.client.reader import Event
    from stentor.client.selectors import Partitioner
    from stentor.client.starts import Start
    from stentor.client.table_backlog import OnSlowWatch
    from stentor.client.table_copy import TableSequence
    from stentor.wire.topic_settings import Cleanup, Durability, Flush, OrderedBy, Placement, TopicKind

AckLevel = Literal["none", "head", "quorum", "all"]
"""When a message counts as published: handed to the socket, taken by the head, by a majority, by the whole chain."""

Compression = Literal["lz4", "zstd"]
"""How a producer compresses its batches."""

OnSlow = Literal["catch_up", "raise", "skip", "disconnect"]
"""What a subscription does once it is further behind than `max_lag`."""

MaxLag = int | timedelta | tuple[int, timedelta]
"""How far behind a subscription may be: in messages, in time, or both, whichever comes first."""

OnFailure = Literal["raise", "skip"]
"""What `run` does when a handler fails: raise, which ends it, or pass the message over."""

OnError = Literal["raise", "skip", "raw"]
"""What a typed topic does with a stored value that does not fit: raise, leave it out, or hand out its bytes."""

Format = Literal["json", "msgpack"]
"""How a typed topic writes its values."""

HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""Headers of a message: a mapping, or pairs if a key repeats."""

TimestampLike = datetime | int
"""The time of a message: a datetime, or microseconds since 1970, UTC."""


class SendOptions(TypedDict, total=False):
    """What may be said of one message besides its value and key."""

    headers: HeadersLike | None
    timestamp: TimestampLike | None
    partition: int | None


class PublishOptions(SendOptions, total=False):
    """The same for a publish, which waits for its answer."""

    key: bytes | str | None
    ack: AckLevel
    timeout: float | None


class ProducerOptions(TypedDict, total=False):
    """How a producer gathers and sends; see Client.producer."""

    ack: AckLevel
    compression: Compression | None
    batch_messages: int
    batch_bytes: int
    buffer_bytes: int
    timeout: float | None
    partitioner: Partitioner | None
    identity: str | None
    secret: str | None
    generation: int


class StreamOptions(TypedDict, total=False):
    """What a subscription reads, and what it does when it is slow; see Client.subscribe."""

    start: Start
    end: Place | None
    partition: int | Iterable[int] | None
    on_slow: OnSlow
    max_lag: MaxLag | None
    stale: Stale


class SubscribeOptions(StreamOptions, total=False):
    """The same with the deadline of the call."""

    timeout: float | None


class GroupOptions(TypedDict, total=False):
    """How a member joins its group; see Client.group."""

    start: Place
    instance: str | None
    auto_commit: bool
    silence: float
    time_limit: float | None
    zone: str | None
    on_assigned: Callable[[Event], object] | None
    on_revoked: Callable[[Event], object] | None
    timeout: float | None


class ReadOptions(TypedDict, total=False):
    """What a bounded read reads; see Client.read."""

    start: Start
    end: Place
    partition: int | Iterable[int] | None
    limit: int | None
    stale: Stale
    timeout: float | None


class OffsetsOptions(TypedDict, total=False):
    """How a position is looked up; see Client.offsets."""

    stale: Stale
    timeout: float | None


class TopicOptions(TypedDict, total=False):
    """Settings of a topic, those that somebody names; their meaning and defaults are those of TopicSettings."""

    partitions: int
    kind: TopicKind
    cleanup: Cleanup
    deletions_kept_s: int
    durability: Durability
    flush: Flush
    flush_interval_ms: int
    replicas: int
    min_replicas: int
    placement: Placement
    retention_age_s: int | None
    retention_bytes: int | None
    keep_unrecorded: bool
    retention_waits_for: str
    retention_wait_bytes: int | None
    segment_bytes: int
    ordered_by: OrderedBy
    max_attempts: int
    lease_s: int
    retry_delay_ms: int
    dead_letter_topic: str


class ProducerStatistics(TypedDict):
    """What a producer counts; see Producer.statistics."""

    topic: str
    messages_acknowledged: int
    messages_failed: int
    outstanding_bytes: int
    in_flight_batches: int
    gathering_messages: int


class SubscriptionStatistics(TypedDict):
    """What a subscription counts; see Subscription.statistics."""

    topics: list[str]
    lag: dict[str, int]
    positions: dict[str, int]
    skipped: int
    compacted: int


class PutManyOptions(TypedDict, total=False):
    """What may be said of several changes of a table at once; see Table.put_many."""

    ttl: float | None
    timeout: float | None


class PutOptions(PutManyOptions, total=False):
    """What may be said of one change of a table; see Table.put."""

    if_version: int | None
    if_absent: bool
    ephemeral: bool
    grace: float | None


class WatchOptions(TypedDict, total=False):
    """Where a watch begins, and what it does when it is behind; see Table.watch."""

    start: TableSequence | None
    limit: int
    on_slow: OnSlowWatch
