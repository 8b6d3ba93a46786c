"""Control messages: msgspec structs in MessagePack, typed and validated on decode.

A request is one of the `Request` union, told apart by its `type` field; its answer is the response
type named beside it. Unknown fields are ignored, so that either side may be newer; unknown request
types are refused with `protocol_error`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from stentor import limits
from stentor.errors import ProtocolError, StentorError, from_wire

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
# MessagePack integers end at 64 bits; offsets and ids stay in the signed half.
U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.TOPIC_NAME_CHARACTERS_MAX)]
Label = Annotated[str, msgspec.Meta(max_length=limits.CLIENT_NAME_CHARACTERS_MAX)]
Partitions = Annotated[int, msgspec.Meta(ge=1, le=limits.PARTITIONS_PER_TOPIC_MAX)]


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plain value inside a message."""


class Tagged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """A message that is told apart by its type."""


# --- handshake ----------------------------------------------------------------------------------


class Hello(Struct):
    """The first frame of a client."""

    version_min: U32
    version_max: U32
    name: Label = ""
    library: Label = ""
    features: Annotated[list[Label], msgspec.Meta(max_length=64)] = []


class Welcome(Struct):
    """The broker's answer."""

    version: U32
    broker: BrokerInfo
    features: list[str] = []
    frame_body_bytes_max: U32 = limits.FRAME_BODY_BYTES_MAX
    silence_ms: U32 = int(limits.SILENCE_S * 1000)


class BrokerInfo(Struct):
    """A broker as clients see it."""

    id: str
    cluster_id: str
    version: str
    address: str
    http_address: str = ""
    zone: str = ""


class Failure(Struct):
    """The body of an ERROR frame and of an unhappy STREAM_ENDED."""

    code: str
    message: str
    hint: str = ""
    operation: str = ""
    object: str = ""
    retriable: bool = False
    detail: dict[str, Any] = {}


# --- topics -------------------------------------------------------------------------------------


class TopicSettings(Struct):
    """What a topic was made with; everything but the number of partitions may be changed later."""

    partitions: Partitions = 1
    flush: Literal["always", "interval"] = "always"
    flush_interval_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = limits.FLUSH_INTERVAL_MS
    retention_age_s: Annotated[int, msgspec.Meta(ge=1)] | None = None
    retention_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    segment_bytes: Annotated[
        int, msgspec.Meta(ge=limits.SEGMENT_BYTES_MIN, le=limits.SEGMENT_BYTES_MAX)
    ] = limits.SEGMENT_BYTES


class PartitionInfo(Struct):
    """One partition: where it is and what it holds."""

    partition: int
    epoch: int = 0
    chain: list[str] = []
    start: int = 0
    committed: int = 0
    end: int = 0
    bytes: int = 0
    segments: int = 0
    damaged: list[tuple[int, int]] = []
    failed: str = ""


class TopicInfo(Struct):
    """A topic with its partitions."""

    name: str
    id: int
    settings: TopicSettings
    partitions: list[PartitionInfo] = []


class CreateTopic(Tagged):
    """Answer: TopicDescribed. `automatic` asks on behalf of a publish or subscribe."""

    name: Name
    settings: TopicSettings | None = None
    exist_ok: bool = False
    automatic: bool = False


class AlterTopic(Tagged):
    """Answer: TopicDescribed. Only the named settings change."""

    name: Name
    changes: dict[str, Any]


class DeleteTopic(Tagged):
    """Answer: Done."""

    name: Name


class DescribeTopic(Tagged):
    """Answer: TopicDescribed."""

    name: Name


class ListTopics(Tagged):
    """Answer: TopicList."""

    pattern: Name = ">"


class TopicDescribed(Tagged):
    topic: TopicInfo


class TopicList(Tagged):
    topics: list[TopicInfo]


# --- positions ----------------------------------------------------------------------------------


class FindOffset(Tagged):
    """Answer: OffsetFound. Exactly one way to say the position."""

    topic_id: U63
    partition: U32
    at: Literal["earliest", "latest"] | None = None
    timestamp_us: Annotated[int, msgspec.Meta(ge=0)] | None = None
    last: Annotated[int, msgspec.Meta(ge=0)] | None = None


class OffsetFound(Tagged):
    offset: int
    start: int
    committed: int


class OpenStream(Struct):
    """The body of OPEN_STREAM; the frame's correlation id names the stream from then on."""

    topic_id: U63
    partition: U32
    start: U63
    credit: Annotated[int, msgspec.Meta(ge=1, le=limits.STREAM_CREDIT_BYTES_MAX)]
    end: U63 | None = None
    seen: U63 = 0  # the highest committed offset this client has seen (C24)


class StreamEnded(Struct):
    """The body of STREAM_ENDED: at the end that was asked for, or with a failure."""

    next_offset: int
    failure: Failure | None = None


# --- routes, clients, statistics ----------------------------------------------------------------


class TopicRoute(Struct):
    """Where a topic's partitions are."""

    name: str
    id: int
    settings: TopicSettings
    partitions: list[PartitionRoute]


class PartitionRoute(Struct):
    """A partition's chain, head first."""

    epoch: int
    chain: list[str]


class RouteTable(Tagged):
    """Everything a client needs to find its way, at a version."""

    version: int
    brokers: list[BrokerInfo]
    topics: list[TopicRoute]


class RouteChange(Struct):
    """The body of ROUTES: from one version to the next."""

    version: int
    topics: list[TopicRoute] = []
    removed: list[int] = []


class WatchRoutes(Tagged):
    """Answer: RouteTable, and ROUTES frames from then on."""


class ListClients(Tagged):
    """Answer: ClientList."""


class ClientInfo(Struct):
    """One connection, as operators see it."""

    name: str
    address: str
    library: str
    connected_at_us: int
    publishing: list[str]
    subscriptions: list[str]
    bytes_in: int
    bytes_out: int


class ClientList(Tagged):
    clients: list[ClientInfo]


class GetStatistics(Tagged):
    """Answer: Statistics."""


class Statistics(Tagged):
    statistics: dict[str, Any]


class Done(Tagged):
    """Nothing to say but that it worked."""


class ReportDamage(Tagged):
    """A reader's checksum failed on these offsets; the broker looks at its disk. Answer: Done."""

    topic_id: U63
    partition: U32
    offset: U63


Request = (
    CreateTopic
    | AlterTopic
    | DeleteTopic
    | DescribeTopic
    | ListTopics
    | FindOffset
    | WatchRoutes
    | ListClients
    | GetStatistics
    | ReportDamage
)
Response = TopicDescribed | TopicList | OffsetFound | RouteTable | ClientList | Statistics | Done

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def encode(message: msgspec.Struct) -> bytes:
    """A control message as MessagePack."""
    return _encoder.encode(message)


def decode(body: bytes | memoryview, kind: Any) -> Any:
    """Decode and validate; anything malformed is a ProtocolError, never another exception."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as error:
        raise ProtocolError(
            f"A control message could not be understood: {error}.",
            hint="Client and broker may be of very different versions; `stentor --version` tells.",
        ) from error


def failure(error: StentorError, operation: str = "") -> Failure:
    """An error as it travels."""
    return Failure(
        code=error.code,
        message=error.message,
        hint=error.hint,
        operation=error.operation or operation,
        object=error.object,
        retriable=error.retriable,
        detail={k: v for k, v in error.detail.items() if isinstance(v, int | str | float)},
    )


def raised(message: Failure) -> StentorError:
    """A failure that travelled, as the error it was."""
    return from_wire(
        message.code,
        message.message,
        hint=message.hint,
        operation=message.operation,
        what=message.object,
        retriable=message.retriable,
        detail={k: v for k, v in message.detail.items() if k.isidentifier()},
    )
