"""The settings of a topic, and the plain types that control messages are made of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from stentor import limits
from stentor.core.cursors import RECORDER
from stentor.core.holders import SECRET_BYTES
from stentor.core.horizon import DELETIONS_KEPT_S, DELETIONS_KEPT_S_MAX
from stentor.errors import InvalidArgument

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
# MessagePack integers end at 64 bits; offsets and ids stay in the signed half.
U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.TOPIC_NAME_CHARACTERS_MAX)]
Label = Annotated[str, msgspec.Meta(max_length=limits.CLIENT_NAME_CHARACTERS_MAX)]
Digest = Annotated[bytes, msgspec.Meta(max_length=32)]
HolderSecret = Annotated[bytes, msgspec.Meta(max_length=SECRET_BYTES)]
Partitions = Annotated[int, msgspec.Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX)]


Durability = Literal["disk", "memory"]
Flush = Literal["always", "interval"]
FlushInterval = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Replicas = Annotated[int, msgspec.Meta(ge=0, le=limits.REPLICAS_MAX)]
Placement = Literal["spread", "active-passive", "multi-primary"]
RetentionAge = Annotated[int, msgspec.Meta(ge=1)] | None
RetentionBytes = Annotated[int, msgspec.Meta(ge=0)] | None
CursorName = Annotated[str, msgspec.Meta(max_length=limits.TOPIC_NAME_CHARACTERS_MAX)]
TopicKind = Literal["stream", "table", "queue"]
Cleanup = Literal["delete", "compact", "compact,delete"]
DeletionsKept = Annotated[int, msgspec.Meta(ge=0, le=DELETIONS_KEPT_S_MAX)]
OrderedBy = Literal["", "key"]
AttemptsMax = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
LeaseSeconds = Annotated[int, msgspec.Meta(ge=1, le=86_400)]
RetryDelay = Annotated[int, msgspec.Meta(ge=0, le=86_400_000)]
SegmentBytes = Annotated[int, msgspec.Meta(ge=limits.SEGMENT_BYTES_MIN, le=limits.SEGMENT_BYTES_MAX)]


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a topic was made with; all but its kind, cleanup, durability, order and number of partitions may be changed
    later.
    """

    partitions: Partitions = 1
    kind: TopicKind = "stream"
    cleanup: Cleanup = "delete"  # what becomes of old messages; a table is compacted in any case
    deletions_kept_s: DeletionsKept = DELETIONS_KEPT_S  # how long a compacted log keeps deletions
    durability: Durability = "disk"  # memory: never written, and lost with the brokers that hold it
    flush: Flush = "always"
    flush_interval_ms: FlushInterval = limits.FLUSH_INTERVAL_MS
    replicas: Replicas = 0  # 0: three, or as many as there are brokers
    min_replicas: Replicas = 0  # 0: a majority of them
    placement: Placement = "spread"
    retention_age_s: RetentionAge = None
    retention_bytes: RetentionBytes = None
    keep_unrecorded: bool = False  # retention waits until a recorder has marked what it would delete
    retention_waits_for: CursorName = ""  # retention waits until this cursor has passed what it would delete
    retention_wait_bytes: RetentionBytes = None  # of what waits: beyond this much it is deleted all the same
    segment_bytes: SegmentBytes = limits.SEGMENT_BYTES
    ordered_by: OrderedBy = ""  # of a queue: "key", two jobs of one key are never in work at once
    max_attempts: AttemptsMax = 5  # of a queue: a job that failed so often is dead
    lease_s: LeaseSeconds = 30  # of a queue: who is silent for so long has lost its jobs
    retry_delay_ms: RetryDelay = 1_000  # of a queue: the pause after a first failure; each further one doubles it
    dead_letter_topic: CursorName = ""  # of a queue: where dead jobs go; empty: its own name and .dead

    @property
    def compacted(self) -> bool:
        """Whether the latest message of each key is enough."""
        return self.kind == "table" or self.cleanup != "delete"

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The cursors that must have passed a message before retention deletes it."""
        recorder = (RECORDER,) if self.keep_unrecorded else ()
        other = (self.retention_waits_for,) if self.retention_waits_for not in ("", *recorder) else ()
        return recorder + other

    @property
    def replicas_wanted(self) -> int:
        """How many members each chain should have."""
        return self.replicas or 1

    @property
    def replicas_needed(self) -> int:
        """With how many it takes messages: what was said, else a majority; of two, one is enough."""
        wanted = self.replicas_wanted
        return min(wanted, self.min_replicas or (wanted // 2 + 1 if wanted > 2 else 1))


class TopicChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Some of the settings of a topic: those that somebody names. On the wire a map of them."""

    partitions: Partitions | UnsetType = UNSET
    kind: TopicKind | UnsetType = UNSET
    cleanup: Cleanup | UnsetType = UNSET
    deletions_kept_s: DeletionsKept | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    flush: Flush | UnsetType = UNSET
    flush_interval_ms: FlushInterval | UnsetType = UNSET
    replicas: Replicas | UnsetType = UNSET
    min_replicas: Replicas | UnsetType = UNSET
    placement: Placement | UnsetType = UNSET
    retention_age_s: RetentionAge | UnsetType = UNSET
    retention_bytes: RetentionBytes | UnsetType = UNSET
    keep_unrecorded: bool | UnsetType = UNSET
    retention_waits_for: CursorName | UnsetType = UNSET
    retention_wait_bytes: RetentionBytes | UnsetType = UNSET
    segment_bytes: SegmentBytes | UnsetType = UNSET
    ordered_by: OrderedBy | UnsetType = UNSET
    max_attempts: AttemptsMax | UnsetType = UNSET
    lease_s: LeaseSeconds | UnsetType = UNSET
    retry_delay_ms: RetryDelay | UnsetType = UNSET
    dead_letter_topic: CursorName | UnsetType = UNSET


def topic_changes(named: dict[str, Any]) -> TopicChanges:
    """The settings that somebody names, judged one by one."""
    unknown = set(named) - set(TopicChanges.__struct_fields__)
    if unknown:
        raise no_setting(min(unknown))
    try:
        return msgspec.convert(named, TopicChanges)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"A topic setting is wrong: {error}.") from error


def merge_settings(settings: TopicSettings, changes: TopicChanges) -> TopicSettings:
    """Settings with some of them changed."""
    named = {name: getattr(changes, name) for name in changes.__struct_fields__}
    return msgspec.structs.replace(settings, **{name: value for name, value in named.items() if value is not UNSET})


def no_setting(name: str) -> InvalidArgument:
    """A setting that topics do not have."""
    return InvalidArgument(
        f"A topic has no setting {name[: limits.CLIENT_NAME_CHARACTERS_MAX]!r}.",
        hint=f"Known: {', '.join(TopicChanges.__struct_fields__)}.",
    )


def wrong_setting(what: str, where: str) -> InvalidArgument:
    """A setting that is not what it may be."""
    return InvalidArgument(f"A topic setting is wrong: {what} - at `${where}`.")
