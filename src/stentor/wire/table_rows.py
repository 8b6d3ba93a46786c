"""Rows of tables: a key, a value or none (the key is deleted), and perhaps a condition, in a header of the message.

    header `stentor-if` ├ version i64 ┤   the offset of the row that last set the key; -1: the key must be absent

A batch with such headers has the attribute CONDITIONAL, so that heads look for them only there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from stentor.core.table import ABSENT, KeyChange
from stentor.errors import InvalidArgument
from stentor.wire import bodies, rows
from stentor.wire.header import ENCODING_ROWS, BatchHeader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stentor.core.records import Batch
    from stentor.wire.rows import Columns, Headers

CONDITION: Final = "stentor-if"
_VERSION: Final = struct.Struct("<q")


def condition(version: int) -> tuple[str, bytes]:
    """The header that makes a row depend on a key's version; ABSENT: on its absence."""
    return CONDITION, _VERSION.pack(version)


def changes(header: Batch, body: bytes | memoryview) -> Iterator[KeyChange]:
    """What the rows of a batch do, whose form was checked."""
    assert isinstance(header, BatchHeader)
    _, keys, values, headers = _columns(header, body)
    conditions: Iterable[int | None] = map(_condition, headers) if header.conditional and headers else ()
    deletes = [value is None for value in values]
    if not conditions:
        return map(KeyChange, _named(keys), deletes)
    return map(KeyChange, _named(keys), deletes, conditions)


def _named(keys: list[bytes | None]) -> list[bytes]:
    return [key or b"" for key in keys]


def check(header: BatchHeader, body: memoryview, topic: str) -> None:
    """Refuse what is no change of a table, before it gets an offset."""
    _, keys, _, headers = _columns(header, body)
    if not all(keys):
        raise InvalidArgument(
            f"Topic {topic} is a table; a message without a key changes nothing in it.",
            hint="Give each message a key, or use a topic that is no table.",
            object=topic,
        )
    if header.conditional and not any(_condition(named) is not None for named in headers or ()):
        raise InvalidArgument(f"A batch for table {topic} claims to have conditions, and has none.", object=topic)


def _columns(header: BatchHeader, body: bytes | memoryview) -> Columns:
    if header.encoding == ENCODING_ROWS:
        return rows.decode(memoryview(body), header.count)
    return bodies.columns(memoryview(body), header.count)


def _condition(headers: Headers | None) -> int | None:
    for name, value in headers or ():
        if name == CONDITION:
            if value is None or len(value) != _VERSION.size:
                raise InvalidArgument("A condition of a row is malformed.")
            version: int = _VERSION.unpack(value)[0]
            if version < ABSENT:
                raise InvalidArgument(f"A row waits for the impossible version {version}.")
            return version
    return None
