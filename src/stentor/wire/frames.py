"""Frames: what every connection carries.

     0          4     5      6          8                    16
     ├──────────┼─────┼──────┼──────────┼─────────────────────┼─ body …
     │ length   │kind │flags │ reserved │   correlation id    │
     └──────────┴─────┴──────┴──────────┴─────────────────────┘

Little-endian. `length` counts the body alone. A request's correlation id is chosen by its sender and
comes back on the answer; a stream's frames carry the correlation id of the frame that opened it.
Reserved bytes are zero. docs/protocol.md is the specification for other languages.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

HEADER: Final = struct.Struct("<IBBHQ")
HEADER_BYTES: Final = HEADER.size

PROTOCOL_VERSION: Final = 1
PROTOCOL_VERSION_MIN: Final = 1


LASTING_PRODUCERS: Final = "lasting-producers"
REQUESTS: Final = "requests"
TRANSACTIONS: Final = "transactions"
FEATURES: Final = ("rows", "arrow", "lz4", "zstd", LASTING_PRODUCERS, REQUESTS, TRANSACTIONS)
"""What this side knows beyond the version: body encodings, compressions, that lasting producers show a token, requests
with their answers (ASK, REPLY), and transactions of groups (TRANSACTION). A connection uses what both know."""


REPORT_CHANGES: Final = "report-changes"
CURSORS: Final = "cursors"
RESPONDERS: Final = "responders"
PEER_FEATURES: Final = ("confirm", REPORT_CHANGES, CURSORS, RESPONDERS)
"""The same between brokers: messages that an older one does not know. `confirm`: Held, Confirm and Confirmed;
`report-changes`: Reports of what changed, and ReportAgain; `cursors`: CursorAsked and CursorAnswered; `responders`:
Responders."""


class Kind(enum.IntEnum):
    """What a frame is. Kinds below 16 are about the connection, the others about data."""

    HELLO = 1  # client: who I am, which versions I speak
    WELCOME = 2  # broker: who I am, which version we speak
    GOODBYE = 3  # either: I close after this; nothing more will come
    PING = 4  # either: are you there?
    PONG = 5  # the answer to PING, same correlation id
    ERROR = 6  # the answer to a request that failed; correlation id 0: the connection itself
    REQUEST = 7  # client: a control request (wire.messages.Request)
    RESPONSE = 8  # broker: its answer (wire.messages.Response)
    ROUTES = 9  # broker: the route table changed
    PEER = 10  # broker to broker: control messages (wire.peer)
    PROVE = 11  # broker to broker: the answer to a WELCOME with a nonce (security.proof)

    PUBLISH = 16  # client: one batch; flags hold the ack level
    PUBLISHED = 17  # broker: where it went
    REPLICATE = 18  # broker to broker: batches on their way down a chain
    OPEN_STREAM = 24  # client: push me a partition's messages from here
    DELIVER = 25  # broker: whole batches of a stream
    CREDIT = 26  # client: push so many more bytes
    CLOSE_STREAM = 27  # client: enough
    STREAM_ENDED = 28  # broker: that was the last of this stream
    STREAM_STATE = 29  # broker: how far the partition is, also when nothing is pushed
    ASK = 32  # client: a request to a responder; broker: the same, to a client that is one (wire.asks)
    REPLY = 33  # the answer to it, back on the same way; flags say whether it failed, and whether more follows
    ASK_CREDIT = 34  # client: so much of a streamed answer was taken; broker: the same, to the responder
    ASK_CANCEL = 35  # client: nobody wants the answer any more; broker: the same, to the responder
    TRANSACTION = 36  # client: how far a group's member has come, and what it sends out; answered like a REQUEST


KINDS: Final = frozenset(int(kind) for kind in Kind)
PEER_KINDS: Final = frozenset({int(Kind.PEER), int(Kind.PROVE), int(Kind.REPLICATE)})


class Ack(enum.IntEnum):
    """When a publish is answered: a place in the chain (D4)."""

    NONE = 0  # never; the fastest way to lose messages
    HEAD = 1  # on the head's disk
    QUORUM = 2  # on the disks of a majority of the configured replicas
    ALL = 3  # on every member's disk: committed


# PUBLISHED: base offset, epoch, appended at (µs).
PUBLISHED: Final = struct.Struct("<QIq")

# DELIVER: the partition's commit point and epoch, how many messages of this range a compaction has removed, the offset
# after the last batch; then whole batches.
DELIVERY: Final = struct.Struct("<QIIQ")

# CREDIT: bytes.
CREDIT: Final = struct.Struct("<Q")

# STREAM_STATE: commit point, epoch. A member that its chain does not confirm ends its streams: there is no age to tell.
STREAM_STATE: Final = struct.Struct("<QI12x")


def frame(kind: int, correlation: int, body: bytes = b"", flags: int = 0) -> bytes:
    """A whole small frame as bytes; large bodies are written beside their header instead."""
    return HEADER.pack(len(body), kind, flags, 0, correlation) + body
