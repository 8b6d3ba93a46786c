"""What brokers say to each other: control messages in PEER frames, batches in REPLICATE frames.

A broker dials every other one twice. The control connection carries heartbeats, reports and everything that goes
up a chain; it is never held back. The data connection carries everything that goes down a chain, in order:
records, where logs part, batches, `durable_k`. A receiver that is far ahead of its disk holds it back.

A PEER frame holds a list of messages, so that what happens in one turn of the loop leaves in one write.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec

from stentor.core import service_limits
from stentor.core.chain_messages import Adopt, Down, Linked, PartitionMessage, ReplicaReport, StatePiece
from stentor.core.cursors import CursorsOf, Forgotten, Moved, NamedCursor
from stentor.core.membership import Heartbeat
from stentor.core.records import ChainRecord
from stentor.errors import ProtocolError
from stentor.wire.messages import Failure
from stentor.wire.topic_settings import U32, Name

CONTROL: Final = "control"
DATA: Final = "data"

DOWNWARDS: Final = (Adopt, Linked, StatePiece, Down)
"""These must stay in order with the batches, so they take the data connection."""

REPLICATE: Final = struct.Struct("<QIIIIQQQ")
"""Topic id, partition, epoch, attempt, epoch before the first batch, its base offset, durable, quorum wanted;
batches follow."""


class _Message(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Told apart by its type."""


class ForPartition(_Message, frozen=True):
    """A message about one partition."""

    topic_id: int
    partition: int
    message: PartitionMessage
    pass_on: bool = False  # to the controller, which does not hear the sender
    origin: str = ""  # who said it, if the sender passes it on


class Pushed(_Message, frozen=True):
    """Records that were swapped into the store: topic id, partition, record, revision."""

    records: list[tuple[int, int, ChainRecord, int]]
    complete: bool = False  # these are all there are


class Reports(_Message, frozen=True):
    """Everything a broker holds, or what changed of it: topic id, partition, report."""

    broker: str
    incarnation: int
    reports: list[tuple[int, int, ReplicaReport]]
    pass_on: bool = False  # as in ForPartition
    number: int = 0  # counts up; 0: an older broker, which does not count
    partial: bool = False  # only what changed since the report before this one
    gone: list[tuple[int, int]] = []  # with `partial`: what the broker does not hold any more


class ReportAgain(_Message, frozen=True):
    """From the controller: it has missed a report, and wants to hear everything."""


class TopicsChanged(_Message, frozen=True):
    """The store has news about topics: look there, the watch may be slow."""

    revision: int
    name: str = ""  # of the topic that was made or changed
    topic_id: int = 0


CursorQuestion = Moved | Forgotten | CursorsOf


class CursorsFound(msgspec.Struct, frozen=True):
    """Cursors as they are committed: topic id, name, and where each is."""

    cursors: list[tuple[int, str, NamedCursor]]
    at: int = 0  # the commit point of the partition that they live in


class CursorAsked(_Message, frozen=True):
    """A question to the head of a partition of the internal topic; or a record, which it appends and commits first."""

    correlation: int
    partition: int
    question: CursorQuestion


class CursorAnswered(_Message, frozen=True):
    """The answer: what was found, or why not."""

    correlation: int
    found: CursorsFound | None = None
    failure: Failure | None = None


class Responders(_Message, frozen=True):
    """How many responders of topics the sender has; 0: none any more."""

    topics: Annotated[list[tuple[Name, U32]], msgspec.Meta(max_length=service_limits.SERVICES_MAX)]
    complete: bool = False  # what was said before is forgotten; more may follow


PeerMessage = (
    Heartbeat
    | ForPartition
    | Pushed
    | Reports
    | ReportAgain
    | TopicsChanged
    | CursorAsked
    | CursorAnswered
    | Responders
)

_encoder = msgspec.msgpack.Encoder()
# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(list[PeerMessage])


def encode(messages: list[PeerMessage]) -> bytes:
    """The body of a PEER frame."""
    return _encoder.encode(messages)


def decode(body: bytes | memoryview) -> list[PeerMessage]:
    """Decode and validate; anything malformed is a ProtocolError."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as error:
        raise ProtocolError(
            f"A broker's message could not be understood: {error}.",
            hint="Brokers of a cluster must have compatible versions.",
        ) from error
