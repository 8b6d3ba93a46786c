"""Control messages: msgspec structs in MessagePack, typed and validated on decode.

A request is one of the `Request` union, told apart by its `type` field; its answer is the response
type named beside it. Unknown fields are ignored, so that either side may be newer; unknown request
types are refused with `protocol_error`.

Nothing decodes into maps of anything (S7). The keys of such a map may be lists, whose hashes collide as the sender
likes: a megabyte of them stops a loop for a minute. Keys are text, whose hashes nobody can foresee, or whole numbers,
of which not enough share a hash.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from stentor import limits
from stentor.core.table import SESSION_BYTES
from stentor.errors import ProtocolError, StentorError, from_wire
from stentor.wire import group_messages
from stentor.wire.group_messages import GroupRequest, GroupResponse
from stentor.wire.queue_messages import AwaitRecall, DescribeQueue, FetchJobs, QueueRequest, QueueResponse, TakeJobs
from stentor.wire.schemas import Columns
from stentor.wire.service_messages import ServiceRequest, ServiceResponse
from stentor.wire.topic_settings import U32, U63, Digest, HolderSecret, Label, Name, no_setting, wrong_setting
from stentor.wire.topic_settings import TopicChanges as TopicChanges  # noqa: PLC0414 - used as messages.TopicChanges
from stentor.wire.topic_settings import TopicSettings as TopicSettings  # noqa: PLC0414 - used as messages.TopicSettings
from stentor.wire.topic_settings import merge_settings as merge_settings  # noqa: PLC0414 - used as messages.merge_settings
from stentor.wire.topic_settings import topic_changes as topic_changes  # noqa: PLC0414 - used as messages.topic_changes

# Used as messages.GroupHeartbeat and so on.
CommitGroup = group_messages.CommitGroup
DeleteGroup = group_messages.DeleteGroup
DescribeGroup = group_messages.DescribeGroup
GroupAssigned = group_messages.GroupAssigned
GroupDescribed = group_messages.GroupDescribed
GroupHeartbeat = group_messages.GroupHeartbeat
GroupList = group_messages.GroupList
LeaveGroup = group_messages.LeaveGroup
ListGroups = group_messages.ListGroups


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A plain value inside a message."""


class Tagged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """A message that is told apart by its type."""


# --- handshake ----------------------------------------------------------------------------------


class Hello(Struct, frozen=True):
    """The first frame of a client."""

    version_min: U32
    version_max: U32
    name: Label = ""
    library: Label = ""
    features: Annotated[list[Label], msgspec.Meta(max_length=64)] = []
    target: Label = ""  # the broker that is wanted, where only another one can be reached
    broker: Label = ""  # set by brokers: who dials
    cluster_id: Label = ""
    purpose: Label = ""  # "control" or "data"
    listener: Label = ""  # set by a broker that passes a client on: the listener the client came in by
    relay: Label = ""  # that broker
    nonce: Digest = b""  # set by brokers: the dialler's (security.proof)
    proof: Digest = b""  # set by a broker that passes a client on: that `listener` is true
    holder: HolderSecret = b""  # set by clients: the secret that everything they hold is bound to (core.holders)


class Welcome(Struct, frozen=True):
    """The broker's answer."""

    version: U32
    broker: BrokerInfo
    features: list[str] = []
    frame_body_bytes_max: U32 = limits.FRAME_BODY_BYTES_MAX
    silence_ms: U32 = int(limits.SILENCE_S * 1000)
    nonce: Digest = b""  # for brokers: the acceptor's, to be answered with PROVE
    proofs: Annotated[list[Digest], msgspec.Meta(max_length=8)] = []  # for brokers: the acceptor's, by each secret


class Prove(Struct, frozen=True):
    """The body of PROVE: a dialling broker answers a WELCOME with a nonce."""

    proof: Digest


class BrokerInfo(Struct, frozen=True):
    """A broker as clients see it."""

    id: str
    cluster_id: str
    version: str
    address: str
    http_address: str = ""
    zone: str = ""
    alive: bool = True
    load: int = 0  # connections, by its own last report


class Failure(Struct, frozen=True):
    """The body of an ERROR frame and of an unhappy STREAM_ENDED."""

    code: str
    message: str
    hint: str = ""
    operation: str = ""
    object: str = ""
    retriable: bool = False
    detail: Annotated[dict[Label, int | float | str | bool], msgspec.Meta(max_length=limits.ERROR_DETAILS_MAX)] = {}


# --- topics -------------------------------------------------------------------------------------


class PartitionInfo(Struct, frozen=True):
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
    recorded: int = 0
    kept_unrecorded: int = 0
    compacted_to: int = 0
    messages_removed: int = 0
    bytes_saved: int = 0


class TopicInfo(Struct, frozen=True):
    """A topic with its partitions."""

    name: str
    id: int
    settings: TopicSettings
    partitions: list[PartitionInfo] = []
    schemas: list[Columns] = []  # all versions, the first is 1; only where one topic is described
    groups: list[str] = []  # groups and cursors that read it and are led by who answers; only where one is described


class CreateTopic(Tagged, frozen=True):
    """Answer: TopicDescribed. `automatic` asks on behalf of a publish or subscribe."""

    name: Name
    settings: TopicChanges = TopicChanges()  # what is not named is the broker's default
    exist_ok: bool = False
    automatic: bool = False


class AlterTopic(Tagged, frozen=True):
    """Answer: TopicDescribed. Only the named settings change."""

    name: Name
    changes: TopicChanges


class RegisterSchema(Tagged, frozen=True):
    """Answer: TopicDescribed. The schema is the next version of the topic's, unless it is one of its versions."""

    name: Name
    columns: Columns


class DeleteTopic(Tagged, frozen=True):
    """Answer: Done."""

    name: Name


class DescribeTopic(Tagged, frozen=True):
    """Answer: TopicDescribed."""

    name: Name


class ListTopics(Tagged, frozen=True):
    """Answer: TopicList."""

    pattern: Name = ">"
    internal: bool = False  # also those whose names begin with `_`, if the pattern is for any name


class TopicDescribed(Tagged, frozen=True):
    """One topic."""

    topic: TopicInfo


class TopicList(Tagged, frozen=True):
    """Several topics, by name."""

    topics: list[TopicInfo]


# --- positions ----------------------------------------------------------------------------------


class FindOffset(Tagged, frozen=True):
    """Answer: OffsetFound. Exactly one way to say the position."""

    topic_id: U63
    partition: U32
    at: Literal["earliest", "latest"] | None = None
    timestamp_us: Annotated[int, msgspec.Meta(ge=0)] | None = None
    last: Annotated[int, msgspec.Meta(ge=0)] | None = None
    seen: U63 = 0  # the highest commit point this client has seen, and the epoch that said so (C24)
    seen_epoch: U32 = 0
    stale: bool = False  # an end that is not certain will do (C30)


class OffsetFound(Tagged, frozen=True):
    """A position as an offset, and the range that can be read."""

    offset: int
    start: int
    committed: int
    epoch: int = 0
    sure: bool = True  # False only for who asked with `stale`: more may be committed than this member knows
    begins: int = 0  # of a memory topic that was lost: where it began anew; how much was before is not known


class OpenStream(Struct, frozen=True):
    """The body of OPEN_STREAM; the frame's correlation id names the stream from then on."""

    topic_id: U63
    partition: U32
    start: U63
    credit: Annotated[int, msgspec.Meta(ge=1, le=limits.STREAM_CREDIT_BYTES_MAX)]
    end: U63 | None = None
    seen: U63 = 0  # the highest committed offset this client has seen (C24)
    subtree: Annotated[str, msgspec.Meta(max_length=limits.MESSAGE_KEY_BYTES_MAX)] = ""  # of a table; empty: all rows
    copies: bool = False  # the client keeps the latest of each key, and must see every deletion (C23)


class StreamEnded(Struct, frozen=True):
    """The body of STREAM_ENDED: at the end that was asked for, or with a failure."""

    next_offset: int
    failure: Failure | None = None


# --- routes, clients, statistics ----------------------------------------------------------------


class TopicRoute(Struct, frozen=True):
    """Where a topic's partitions are."""

    name: str
    id: int
    settings: TopicSettings
    partitions: list[PartitionRoute]


class PartitionRoute(Struct, frozen=True):
    """A partition's chain, head first."""

    epoch: int
    chain: list[str]


class RouteTable(Tagged, frozen=True):
    """Everything a client needs to find its way, at a version."""

    version: int
    brokers: list[BrokerInfo]
    topics: list[TopicRoute]


class RouteChange(Struct, frozen=True):
    """The body of ROUTES: from one version to the next."""

    version: int
    topics: list[TopicRoute] = []
    removed: list[int] = []
    brokers: list[BrokerInfo] = []  # new or changed
    gone: list[str] = []  # brokers that left


class WatchRoutes(Tagged, frozen=True):
    """Answer: RouteTable, and ROUTES frames from then on."""

    stale: bool = False  # also from a broker that started without its coordination store, and knows what was


class ListClients(Tagged, frozen=True):
    """Answer: ClientList."""


class ClientInfo(Struct, frozen=True):
    """One connection, as operators see it."""

    name: str
    address: str
    library: str
    connected_at_us: int
    publishing: list[str]
    subscriptions: list[str]
    bytes_in: int
    bytes_out: int
    lag: int = 0
    lag_s: float = 0.0


class ClientList(Tagged, frozen=True):
    """Everyone who is connected."""

    clients: list[ClientInfo]


class GetStatistics(Tagged, frozen=True):
    """Answer: Statistics."""


def _counted(depth: int) -> Any:
    """Numbers and texts in lists and maps, to a depth; the keys of maps are text or numbers of 64 bits."""
    plain = None | bool | int | float | str
    if not depth:
        return plain
    inner = _counted(depth - 1)
    return plain | list[inner] | dict[str | int, inner]  # type: ignore[valid-type]


if TYPE_CHECKING:
    Counted = Any
else:
    Counted = _counted(6)


class Statistics(Tagged, frozen=True):
    """Everything the broker counts."""

    statistics: dict[str, Counted]


class ListBrokers(Tagged, frozen=True):
    """Answer: BrokerList."""


class BrokerState(Struct, frozen=True):
    """A broker as operators see it."""

    info: BrokerInfo
    incarnation: int = 0
    view: str = "heard"  # how the answering broker sees it: heard, silent, refused
    controller: bool = False
    draining: bool = False
    replicas: int = 0
    heads: int = 0


class BrokerList(Tagged, frozen=True):
    """All registered brokers."""

    brokers: list[BrokerState]


class DrainBroker(Tagged, frozen=True):
    """Move all replicas away from a broker, or let it take some again. Answer: Done."""

    broker: Label
    draining: bool = True


class ForgetBroker(Tagged, frozen=True):
    """Take a broker that is gone for good off the list. Answer: Done."""

    broker: Label


class RecoverPartition(Tagged, frozen=True):
    """Let the copy of the broker that is asked lead, whatever is lost (C13). Answer: PartitionRecovered."""

    topic: Name
    partition: U32


class PartitionRecovered(Tagged, frozen=True):
    """What that cost: offsets from `end` to `committed`, at least, are lost."""

    epoch: int
    end: int
    committed: int


class Done(Tagged, frozen=True):
    """Nothing to say but that it worked."""


class ReportDamage(Tagged, frozen=True):
    """A reader's checksum failed somewhere in these offsets; the broker looks at its disk. Answer: Done."""

    topic_id: U63
    partition: U32
    offset: U63
    end: U63 = 0


class MarkRecorded(Tagged, frozen=True):
    """A recorder has put away everything below these offsets; asked of the partitions' head. Answer: Done."""

    topic: Name
    ends: Annotated[dict[U32, U63], msgspec.Meta(max_length=limits.PARTITIONS_PER_TOPIC_MAX)]


CursorPositions = Annotated[dict[U32, U63], msgspec.Meta(max_length=limits.PARTITIONS_PER_TOPIC_MAX)]


class MoveCursor(Tagged, frozen=True):
    """Somebody is done with everything below these offsets; asked of the partitions' head. Answer: Done."""

    topic: Name
    name: Name
    positions: CursorPositions
    by: Label = ""  # empty: the name of the client
    back: bool = False  # positions may go back


class ListCursors(Tagged, frozen=True):
    """All cursors of a topic. Answer: CursorList."""

    topic: Name


class CursorState(Struct, frozen=True):
    """Where a cursor is."""

    name: str
    positions: dict[U32, U63] = {}
    moved_by: str = ""
    moved_at_us: int = 0


class CursorList(Tagged, frozen=True):
    """Cursors by name."""

    cursors: list[CursorState]


class DeleteCursor(Tagged, frozen=True):
    """Forget a cursor. Answer: Done."""

    topic: Name
    name: Name


class Touch(Tagged, frozen=True):
    """Keys of a table, and all that belong to a session, stay for their whole ttl from now on; asked of the partition's
    head. Answer: Touched.
    """

    topic_id: U63
    partition: U32
    keys: Annotated[
        list[Annotated[bytes, msgspec.Meta(max_length=limits.MESSAGE_KEY_BYTES_MAX)]], msgspec.Meta(max_length=1_000)
    ] = []
    session: Annotated[bytes, msgspec.Meta(max_length=SESSION_BYTES)] = b""


class Touched(Tagged, frozen=True):
    """Which keys that were is in the log before this offset, which is committed."""

    end: int


class UseProducer(Tagged, frozen=True):
    """This connection sends under the lasting producer id that belongs to a secret token. Answer: Done."""

    token: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]

    def __repr__(self) -> str:
        """Secrets are never logged (S4)."""
        return "UseProducer()"


Request = (
    CreateTopic
    | AlterTopic
    | RegisterSchema
    | DeleteTopic
    | DescribeTopic
    | ListTopics
    | FindOffset
    | WatchRoutes
    | ListClients
    | GetStatistics
    | ReportDamage
    | ListBrokers
    | DrainBroker
    | ForgetBroker
    | RecoverPartition
    | MarkRecorded
    | MoveCursor
    | ListCursors
    | DeleteCursor
    | UseProducer
    | Touch
    | GroupRequest
    | ServiceRequest
    | QueueRequest
)
_TOPIC_QUESTIONS = (DescribeTopic, ListTopics, FindOffset, WatchRoutes, ListClients, GetStatistics, ListCursors)
QUESTIONS = (*_TOPIC_QUESTIONS, DescribeGroup, DescribeQueue, FetchJobs)
"""Requests that change nothing: they may be sent again, and be answered by a broker that has no store."""
_SET_VALUES = (AlterTopic, RegisterSchema, DrainBroker, MarkRecorded, MoveCursor, DeleteCursor)
_REPEATABLE = (*QUESTIONS, *_SET_VALUES, ListBrokers, ListGroups)


def is_repeatable(request: Any) -> bool:
    """Return whether a request may be asked again after its answer was lost: a question, or how something shall be.

    A topic is made again only where an existing one will do. Deleting a topic or forgetting a broker is not repeated:
    somebody may have made another of that name in between.
    """
    return (
        request.exist_ok or request.automatic if isinstance(request, CreateTopic) else isinstance(request, _REPEATABLE)
    )


POLLS = (TakeJobs, AwaitRecall, GroupHeartbeat)
"""Requests that wait at the broker for news."""

Response = (
    TopicDescribed
    | TopicList
    | OffsetFound
    | RouteTable
    | ClientList
    | Statistics
    | Done
    | BrokerList
    | PartitionRecovered
    | CursorList
    | Touched
    | GroupResponse
    | ServiceResponse
    | QueueResponse
)

# What an error has by itself; a peer's details may not pass for it.
_ERROR_FIELDS = frozenset({"self", "message", "hint", "operation", "object"})


_IN_SETTINGS = re.compile(r"(?P<what>.*) - at `\$\.(?:settings|changes)(?P<where>.*)`", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def _not_understood(error: Exception) -> StentorError:
    """A setting that is wrong is the asker's mistake, and told as one; everything else breaks the protocol."""
    setting = _IN_SETTINGS.fullmatch(str(error)) if isinstance(error, msgspec.ValidationError) else None
    if setting is not None:
        unknown = _UNKNOWN_FIELD.fullmatch(setting["what"])
        return no_setting(unknown[1]) if unknown else wrong_setting(setting["what"], setting["where"])
    return ProtocolError(
        f"A control message could not be understood: {error}.",
        hint="Client and broker may have very different versions. Compare them with `stentor --version`.",
    )


_encoder = msgspec.msgpack.Encoder()
# All made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (
        *(Request, Response, Hello, Welcome, Prove, Failure, OpenStream, StreamEnded, RouteChange),
        group_messages.CommitTransaction,
    )
}


def encode(message: msgspec.Struct) -> bytes:
    """A control message as MessagePack."""
    return _encoder.encode(message)


def decode(body: bytes | memoryview, kind: Any) -> Any:
    """Decode and validate; anything malformed is a ProtocolError (a topic setting: InvalidArgument), nothing else."""
    try:
        return _decoders[kind].decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as error:
        raise _not_understood(error) from error


def failure(error: StentorError, operation: str = "") -> Failure:
    """An error as it travels."""
    told = [(key, value) for key, value in error.detail.items() if isinstance(value, int | str | float)]
    return Failure(
        code=error.code,
        message=error.message,
        hint=error.hint,
        operation=error.operation or operation,
        object=error.object,
        retriable=error.retriable,
        detail=dict(told[: limits.ERROR_DETAILS_MAX]),
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
        detail={k: v for k, v in message.detail.items() if k not in _ERROR_FIELDS},
    )
