"""What etcd's JSON gateway says and hears, as far as we use it.

Bytes travel as base64 and 64-bit numbers as strings; msgspec turns both into what they are. A field
that is zero, false or empty is left out by etcd. Fields without a default are those whose absence
shows that the other side is not etcd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

RANGE: Final = "/v3/kv/range"
TXN: Final = "/v3/kv/txn"
LEASE_GRANT: Final = "/v3/lease/grant"
LEASE_KEEP_ALIVE: Final = "/v3/lease/keepalive"
LEASE_REVOKE: Final = "/v3/lease/revoke"
WATCH: Final = "/v3/watch"
COMPACT: Final = "/v3/kv/compaction"
STATUS: Final = "/v3/maintenance/status"
AUTHENTICATE: Final = "/v3/auth/authenticate"


class Header(msgspec.Struct, frozen=True):
    """Comes with every answer."""

    revision: int


class KeyValue(msgspec.Struct, frozen=True):
    """A key; of a deleted one only key and revision."""

    key: bytes
    mod_revision: int = 0  # left out by keys-only answers of very old servers, never by ours
    value: bytes = b""


class RangeAnswer(msgspec.Struct, frozen=True):
    """A page of keys."""

    header: Header
    kvs: list[KeyValue] = []
    more: bool = False
    count: int = 0  # of all keys in the range


class TxnAnswer(msgspec.Struct, frozen=True):
    """What became of a transaction."""

    header: Header
    succeeded: bool = False


class Lease(msgspec.Struct, frozen=True):
    """A lease; without a TTL it is gone."""

    ID: int
    TTL: int = 0


class KeepAliveAnswer(msgspec.Struct, frozen=True):
    """One line of the stream that /v3/lease/keepalive is."""

    result: Lease


class Acknowledged(msgspec.Struct, frozen=True):
    """An answer of which only the arrival matters."""

    header: Header


class StatusAnswer(
    msgspec.Struct, frozen=True, rename={"size": "dbSize", "in_use": "dbSizeInUse", "quota": "dbSizeQuota"}
):
    """How one member is."""

    header: Header
    size: int = 0
    in_use: int = 0  # left out before 3.4
    quota: int = 0  # left out before 3.6
    errors: list[str] = []  # the alarms, among others


class TokenAnswer(msgspec.Struct, frozen=True):
    """What later requests show to be let in."""

    token: str


class EtcdEvent(msgspec.Struct, frozen=True):
    """A key was put or deleted."""

    kv: KeyValue
    type: str = "PUT"


class WatchAnswer(msgspec.Struct, frozen=True):
    """One line of a watch's stream: whole revisions, in order."""

    created: bool = False
    canceled: bool = False
    compact_revision: int = 0  # set if it was canceled because the history begins only here
    cancel_reason: str = ""
    events: list[EtcdEvent] = []


class EtcdProblem(msgspec.Struct, frozen=True):
    """Why a request failed; the code is gRPC's."""

    code: int = 0
    message: str = ""
    error: str = ""


class WatchLine(msgspec.Struct, frozen=True):
    """A line of a stream: a result or an error."""

    result: WatchAnswer | None = None
    error: EtcdProblem | None = None


Answer = TypeVar("Answer")

# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoders: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind, strict=False)
    for kind in (
        RangeAnswer,
        TxnAnswer,
        Lease,
        KeepAliveAnswer,
        Acknowledged,
        TokenAnswer,
        WatchLine,
        EtcdProblem,
        StatusAnswer,
    )
}


def decode(data: bytes | bytearray, kind: type[Answer]) -> Answer:
    """An answer as what it should be; ValueError if it is anything else."""
    try:
        answer: Answer = _decoders[kind].decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return answer


def encode(request: Mapping[str, Any]) -> bytes:
    """A request as JSON."""
    return msgspec.json.encode(request)


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`, which is UTF-8 and so holds no byte 255."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def txn(
    expect: Mapping[bytes, int], put: Mapping[bytes, bytes], delete: tuple[bytes, ...], lease: int
) -> dict[str, Any]:
    """A transaction that compares revisions, then changes."""
    changes: list[dict[str, Any]] = [
        {"request_put": {"key": key, "value": value, "lease": str(lease)}} for key, value in put.items()
    ]
    changes += [{"request_delete_range": {"key": key}} for key in dict.fromkeys(delete)]
    compare = [
        {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
        for key, revision in expect.items()
    ]
    if changes:
        return {"compare": compare, "success": changes}
    # A transaction without operations is answered from one member's memory, which may be behind. A read
    # in both branches makes it as current as a change would be.
    read = [{"request_range": {"key": next(iter(expect)), "count_only": True}}]
    return {"compare": compare, "success": read, "failure": read}
