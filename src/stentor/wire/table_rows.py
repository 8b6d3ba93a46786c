"""Rows of tables: a key, a value or none (the key is deleted), and perhaps terms, in headers of the message.

    header `stentor-if`      ├ version i64 ┤   the offset of the row that last set the key; -1: the key must be absent
    header `stentor-ttl`     ├ time u64    ┤   microseconds after which the key goes, unless it is touched or put again
    header `stentor-session` ├ 16 bytes    ┤   with a ttl: the client's session that keeps the key alive
    header `stentor-holder`  ├ 16 bytes    ┤   with a session: the hash of its client's secret, which it alone has (C36)
    header `stentor-why`     "expired"         the head deleted the key because its time was over

A batch with conditions has the attribute CONDITIONAL, and one with ttls TIMED, so that heads look for them only there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from stentor import limits
from stentor.core.holders import HASH_BYTES, NOBODY
from stentor.core.table import ABSENT, SESSION_BYTES, TTL_S_MAX, KeyChange
from stentor.errors import InvalidArgument, LimitExceeded
from stentor.wire import batch, deltas
from stentor.wire.header import CONDITIONAL, BatchHeader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stentor.core.records import Batch
    from stentor.wire.rows import Headers

CONDITION: Final = "stentor-if"
TTL: Final = "stentor-ttl"
SESSION: Final = "stentor-session"
HOLDER: Final = "stentor-holder"
WHY: Final = "stentor-why"
EXPIRED: Final = b"expired"
_VERSION: Final = struct.Struct("<q")
_TIME: Final = struct.Struct("<Q")
_TTL_US_MAX: Final = TTL_S_MAX * 1_000_000


class Terms(NamedTuple):
    """What a row says beside its key and value."""

    condition: int | None = None
    ttl_us: int = 0
    session: bytes = b""
    why: bytes = b""
    holder: bytes = NOBODY


NO_TERMS: Final = Terms()


def condition(version: int) -> tuple[str, bytes]:
    """The header that makes a row depend on a key's version; ABSENT: on its absence."""
    return CONDITION, _VERSION.pack(version)


def lease(ttl_us: int, session: bytes = b"", holder: bytes = NOBODY) -> Headers:
    """The headers of a row whose key goes after some time; of a session's, when that is not heard for so long."""
    ttl = TTL, _TIME.pack(ttl_us)
    if not session:
        return [ttl]
    return [ttl, (SESSION, session), (HOLDER, holder)] if holder else [ttl, (SESSION, session)]


def expired(due: Sequence[tuple[bytes, int]], now_us: int, *, topic_id: int, partition: int) -> bytearray:
    """A whole batch, by the head itself, that deletes keys which are at these versions."""
    keys, gone = [key for key, _ in due], [None] * len(due)
    why = WHY, EXPIRED
    encoded = batch.encode([now_us] * len(due), keys, gone, [[condition(version), why] for _, version in due])
    encoded = msgspec.structs.replace(encoded, attributes=encoded.attributes | CONDITIONAL)
    header = batch.address(encoded, topic_id=topic_id, partition=partition, producer_id=0, generation=0, sequence=0)
    return header + encoded.body


def changes(header: Batch, body: bytes | memoryview) -> Iterator[KeyChange]:
    """What the rows of a batch do, whose form was checked."""
    assert isinstance(header, BatchHeader)
    _, keys, values, headers = batch.body_columns(header, body)
    deletes = [value is None for value in values]
    if not headers or not (header.conditional or header.timed):
        return map(KeyChange, _named(keys), deletes)
    told = [_held_terms(named) for named in headers]
    return map(
        KeyChange,
        _named(keys),
        deletes,
        [each.condition for each in told],
        [each.ttl_us for each in told],
        [each.session for each in told],
        [each.holder for each in told],
    )


def _held_terms(named: Headers | None) -> Terms:
    """The same of a row in a log. One whose terms mean nothing is a row without terms, for brokers as for readers."""
    try:
        return terms(named)
    except InvalidArgument:
        return NO_TERMS


def offsets(header: Batch, body: bytes | memoryview) -> Iterable[int]:
    """Where the rows of a batch are."""
    assert isinstance(header, BatchHeader)
    return deltas.offsets(header, body)


def _named(keys: list[bytes | None]) -> list[bytes]:
    return [key or b"" for key in keys]


def check(header: BatchHeader, body: memoryview, topic: str, holder: bytes | None = None) -> None:
    """Refuse what is no change of a table, before it gets an offset: heads and copies meet nothing of that kind.

    `holder` is who sends it: nobody makes a key another's (C36). None: the cluster does not compare holders yet.
    """
    check_size(header.count, topic, terms=header.conditional or header.timed)
    check_headers(batch.header_count(header, body), topic)
    _, keys, values, headers = batch.body_columns(header, body)
    for key in keys:
        if not key:
            raise InvalidArgument(
                f"Topic {topic} is a table; a message without a key changes nothing in it.",
                hint="Give each message a key, or use a topic that is no table.",
                object=topic,
            )
        if not key.isascii() and not _is_text(key):
            raise InvalidArgument(
                f"Topic {topic} is a table; its keys are text, and {key[:40]!r} is not UTF-8.",
                hint="Encode the key, for example as hexadecimal digits.",
                object=topic,
            )
    if headers is None and not header.conditional and not header.timed:
        return
    told = [terms(named) for named in headers or ()]
    _check_said(topic, "conditions", header.conditional, any(each.condition is not None for each in told))
    _check_said(topic, "keys that expire", header.timed, any(each.ttl_us for each in told))
    for each, value in zip(told, values, strict=False):
        if each.why or (each.ttl_us and value is None) or (each.session and not each.ttl_us):
            raise InvalidArgument(
                f"A row for table {topic} deletes a key and gives it a ttl, has a session and no ttl, or says why.",
                hint=f"The headers {TTL}, {SESSION} and {WHY} are for tables themselves: use put() with ttl.",
                object=topic,
            )
        if each.holder and (not each.session or holder not in (None, each.holder)):
            raise InvalidArgument(
                f"A row for table {topic} belongs to another client than the one that sends it.",
                hint=f"The header {HOLDER} is for tables themselves: use put() with ephemeral=True.",
                object=topic,
            )


def check_size(rows: int, topic: str, *, terms: bool) -> None:
    """Refuse more rows than every member of a chain can fold into its copy without holding up others (C35)."""
    most = limits.TABLE_BATCH_TERMS_ROWS_MAX if terms else limits.TABLE_BATCH_ROWS_MAX
    if rows > most:
        raise LimitExceeded(
            f"A change of table {topic} has {rows} rows{' with conditions or a ttl' if terms else ''}; the limit is"
            f" {most}.",
            hint="Make several changes of it. Only what must take effect together needs to be one.",
            object=topic,
            limit=most,
        )


def check_headers(count: int, topic: str) -> None:
    """Refuse more headers than a head can look through at once."""
    if count > limits.TABLE_BATCH_HEADERS_MAX:
        raise LimitExceeded(
            f"The rows of a change of table {topic} have {count} headers together; the limit is"
            f" {limits.TABLE_BATCH_HEADERS_MAX}.",
            hint="Make several changes of it, or give the rows fewer headers.",
            object=topic,
            limit=limits.TABLE_BATCH_HEADERS_MAX,
        )


def _check_said(topic: str, what: str, said: bool, found: bool) -> None:
    """Whether the batch's attributes are true."""
    if said == found:
        return
    has, says = ("has", "does not say so") if found else ("has no", "says that it has")
    raise InvalidArgument(
        f"A batch for table {topic} {has} {what}, and {says}.",
        hint=f"The headers {CONDITION} and {TTL} are for tables themselves: use put() with if_version, if_absent or"
        " ttl.",
        object=topic,
    )


def check_keys(header: BatchHeader, body: memoryview, topic: str) -> None:
    """Refuse messages without a key, of which a compaction could not say which is the latest."""
    if not batch.has_keys(header, body):
        raise InvalidArgument(
            f"Topic {topic} is compacted: it holds the latest message of each key, and a message has no key.",
            hint="Give each message a key, or use a topic with cleanup=delete.",
            object=topic,
        )


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def terms(headers: Headers | None) -> Terms:
    """What the headers of a row say."""
    if not headers:
        return NO_TERMS
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name in _SIZES:
            if value is None or len(value) != (_SIZES[name] or len(value)):
                raise InvalidArgument(f"The header {name} of a row is malformed.")
            if name in found:
                raise InvalidArgument(f"A row has the header {name} twice.")
            found[name] = value
    if not found:
        return NO_TERMS
    version = _VERSION.unpack(found[CONDITION])[0] if CONDITION in found else None
    if version is not None and version < ABSENT:
        raise InvalidArgument(f"A row waits for the impossible version {version}.")
    ttl_us = _TIME.unpack(found[TTL])[0] if TTL in found else 0
    if TTL in found and not 0 < ttl_us <= _TTL_US_MAX:
        raise InvalidArgument(f"A row has the impossible ttl of {ttl_us} microseconds.")
    return Terms(version, ttl_us, found.get(SESSION, b""), found.get(WHY, b""), found.get(HOLDER, NOBODY))


_SIZES: Final = {CONDITION: _VERSION.size, TTL: _TIME.size, SESSION: SESSION_BYTES, HOLDER: HASH_BYTES, WHY: 0}
"""Of the headers' values; 0: any."""
