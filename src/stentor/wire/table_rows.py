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
    """Refuse what is no change of a table, before it gets an offset: heads and copies meet nothing of that kind."""
    _, keys, _, headers = _columns(header, body)
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
    conditional = any([_condition(named) is not None for named in headers or ()])  # noqa: C419 - looks at all of them
    if conditional != header.conditional:
        has, says = ("has", "does not say so") if conditional else ("has no", "says that it has")
        raise InvalidArgument(
            f"A batch for table {topic} {has} conditions, and {says}.",
            hint=f"The header {CONDITION} is for tables themselves: use put() with if_version or if_absent.",
            object=topic,
        )


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _columns(header: BatchHeader, body: bytes | memoryview) -> Columns:
    if header.encoding == ENCODING_ROWS:
        return rows.decode(memoryview(body), header.count)
    return bodies.columns(memoryview(body), header.count)


def _condition(headers: Headers | None) -> int | None:
    found: int | None = None
    for name, value in headers or ():
        if name == CONDITION:
            if value is None or len(value) != _VERSION.size:
                raise InvalidArgument("A condition of a row is malformed.")
            if found is not None:
                raise InvalidArgument("A row has two conditions.")
            found = _VERSION.unpack(value)[0]
            if found < ABSENT:
                raise InvalidArgument(f"A row waits for the impossible version {found}.")
    return found
