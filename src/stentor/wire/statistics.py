"""What a broker tells of itself: metrics, the page, `/statistics`, the topic `_metrics` and the command line read it.

The fields and their order are the keys that users see. Every field has a default: whoever reads statistics may ask a
broker of another version, which leaves out what it does not know.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from stentor.core.statistics import ControllerStatistics, MembershipStatistics, ReplicaStatistics
from stentor.errors import ProtocolError


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with a broker."""

    severity: Literal["error", "warning"]  # error: something is refused until somebody acts
    object: str  # disk, memory, logs, chains, retention or coordination store
    message: str
    hint: str


class Health(msgspec.Struct, frozen=True):
    """How a broker is. Health checks, metrics, statistics and the command line all read this."""

    disk_writable: bool = True  # a small synced write succeeds, and there is more room than the reserve
    store_reachable: bool = True  # the coordination store answers
    log_failed: int = 0  # logs here that take no more writes
    chain_short: int = 0  # chains with a member here that have fewer members than they should
    chain_refusing: int = 0  # those of them that have too few to take messages
    retention_overrun: int = 0  # partitions led here that lost messages which a cursor had not passed
    unready: str = ""  # why clients should go elsewhere; empty while they need not
    problems: list[Problem] = []  # in words, the worst first


class ReceivingStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that all connections together use to receive."""

    bytes: int = 0  # lent now
    bytes_max: int = 0
    loans: int = 0
    waiting: int = 0  # connections that are not read from until room comes back
    closed_frames: int = 0  # frames that arrived too slowly while others waited


class MemoryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that messages are kept in, beside the disk: memory topics, the jobs of queues, the newest of all."""

    bytes: int = 0  # used now
    bytes_max: int = 0  # the broker's budget
    refused: int = 0  # publishes that were refused because it was used up
    tail_cache_bytes: int = 0  # what the newest batches take that are kept for live readers, beside that budget
    tail_cache_bytes_max: int = 0  # the most that they may take


class LoopStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How long the broker's loop was held at a time: the lateness of a timer of 5 ms."""

    steps: int = 0
    over_50_ms: int = 0
    over_200_ms: int = 0
    lately_ms: float = 0.0  # the longest of the last minute or two
    lately_by: str = ""  # whose that was
    longest_ms: float = 0.0  # since the broker was started
    longest_by: str = ""
    longest_at_us: int = 0
    parked: int = 0  # slices of connections that ended with frames left
    counts: tuple[int, ...] = ()  # steps by length, in the classes of `loop_watch.BOUNDS_MS`, and longer ones
    cpu_counts: tuple[int, ...] = ()  # the same by the processor time of the loop in them: without what others took


class BrokerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The broker as a whole."""

    id: str = ""
    version: str = ""
    uptime_s: float = 0.0
    connections: int = 0
    refusals: int = 0  # connections that were refused
    failures: int = 0  # pieces of repeated work that failed; each is tried again
    receiving: ReceivingStatistics = ReceivingStatistics()
    syncs_in_loop: int = 0
    streams: int = 0
    topics: int = 0
    partitions: int = 0  # copies that this broker holds
    bytes_in: int = 0  # of the connections that are open now
    bytes_out: int = 0
    memory_log_bytes: int = 0  # held for memory topics
    memory: MemoryStatistics = MemoryStatistics()
    loop: LoopStatistics = LoopStatistics()


class StoreRoomStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How full the coordination store is; all 0 where it cannot be full, or does not say."""

    bytes: int = 0  # on disk
    bytes_in_use: int = 0
    bytes_max: int = 0  # its quota
    alarm: bool = False  # it was full, and takes no changes
    refused: int = 0  # changes by clients that this broker refused
    compacted_to: int = 0  # the revision below which this broker had its history forgotten


class ClusterStatistics(MembershipStatistics, frozen=True, kw_only=True):
    """The cluster as this broker sees it."""

    takeovers: int = 0  # how often this broker became the controller
    resignations: int = 0
    store_restored: bool = False  # the store was restored from an older state, and is not followed
    chains: ControllerStatistics | UnsetType = UNSET  # only the controller has them
    confirmed: bool = True  # it hears the controller, or a majority
    feature_level: int = 0
    store: StoreRoomStatistics = StoreRoomStatistics()


class LaggingSubscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber that is far behind."""

    client: str = ""
    address: str = ""
    topic: str = ""
    partition: int = 0
    taken: int = 0  # the offset up to which its application took messages
    lag: int = 0
    lag_s: float = 0.0


class ChainStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How many members a chain has and should have."""

    replicas: int = 0
    replicas_wanted: int = 0


class DedupeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of producers, so that a resend is not stored twice."""

    producers: int = 0
    searches: int = 0  # resends that had to be looked up in the log


class LogStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A log in numbers."""

    start: int = 0
    end: int = 0
    synced_end: int = 0
    bytes: int = 0
    segments: int = 0
    appends: int = 0
    syncs: int = 0
    sync_us_total: int = 0
    sync_us_max: int = 0
    failed: bool = False
    damaged: tuple[tuple[int, int], ...] = ()
    in_memory: bool = False


class CompactionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What compactions of this copy have done since the broker was started."""

    horizon: int = 0  # below this offset, the last message of each key is enough
    compacted_to: int = 0  # the horizon of the last compaction
    deletions_until: int = 0  # below this offset, deletions may be gone
    runs: int = 0
    running: bool = False
    bytes_before: int = 0  # of segments that were written anew
    bytes_after: int = 0
    messages_removed: int = 0
    last_at_us: int = 0  # when the last one ended


class PartitionStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, as far as it is on this broker."""

    topic: str = ""
    partition: int = 0
    batches_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    messages_out: int = 0
    streams: int = 0  # subscribers
    lag_max: int = 0  # messages that the slowest of them is behind
    lag_sum: int = 0  # messages that all of them together are behind
    lag_max_s: float = 0.0  # the age of the oldest message that one of them has not read
    tail_cache_bytes: int = 0
    chain: ChainStatistics = ChainStatistics()
    replica: ReplicaStatistics = ReplicaStatistics()
    dedupe: DedupeStatistics = DedupeStatistics()
    log: LogStatistics = LogStatistics()
    compaction: CompactionStatistics = CompactionStatistics()


class ServiceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Requests at this broker, and who answers them."""

    topics: int = 0  # that are served here
    responders: int = 0
    handed_over: int = 0  # requests that responders got
    refused: int = 0  # requests that were answered with an error by this broker
    queued: int = 0  # requests that wait for a responder
    in_work: int = 0  # requests that responders have now


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, as far as this broker leads its partitions: over all brokers the numbers add up."""

    topic: str = ""
    partitions: int = 0  # that are led here
    ready: int = 0  # jobs that can be handed out now, or wait for their turn
    in_work: int = 0  # jobs that consumers hold
    delayed: int = 0  # jobs that are not due yet: put with a delay, or to be tried again later
    dying: int = 0  # jobs on their way to the dead-letter topic
    consumers: int = 0  # of the partition that has most
    finished: int = 0  # jobs that were acknowledged since the queue was made
    dead_lettered: int = 0  # jobs that went to the dead-letter topic since then
    skipped: int = 0  # records of the log that could not be applied, since these copies were opened


class BrokerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a broker counts."""

    broker: BrokerCounts = BrokerCounts()
    health: Health = Health()
    cluster: ClusterStatistics | None = None  # None until it has joined
    lagging: list[LaggingSubscriber] = []  # those that are furthest behind
    services: ServiceStatistics = ServiceStatistics()
    queues: list[QueueStatistics] = []
    partitions: list[PartitionStatistics] = []


def as_map(statistics: BrokerStatistics) -> dict[str, Any]:
    """By name, for JSON and the wire: a broker that has not joined shows an empty cluster."""
    return {**msgspec.structs.asdict(statistics), "cluster": statistics.cluster or {}}


def from_map(found: dict[str, Any]) -> BrokerStatistics:
    """What a broker answered, of whatever version it is."""
    try:
        return msgspec.convert(found, BrokerStatistics)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"The broker's statistics cannot be read: {error}.") from error
