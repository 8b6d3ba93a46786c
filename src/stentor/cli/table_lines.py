"""Tables as lines of JSON: what `stentor table dump` writes and `stentor table load` reads.

    {"key": "app/rate", "value": "100", "version": 17}

A value that is not UTF-8 is {"base64": "..."}. A null value deletes the key. A key that expires has its seconds as
"ttl", also if it belongs to a client, and begins them anew when it is loaded. `load` ignores the version: the key gets
a new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from stentor.cli.formats import from_json, to_json
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import Table, TableEntry

CHANGE_BYTES_MAX: Final = 1024 * 1024
"""So much is loaded in one change: large enough for speed, and a value of the greatest size still fits a batch."""

CHANGE_KEYS_MAX: Final = 1_000

FIELDS: Final = frozenset({"key", "value", "version", "ttl"})

_encode: Final = msgspec.json.Encoder().encode


def as_object(entry: TableEntry) -> dict[str, Any]:
    """An entry as JSON has it."""
    shown = {"key": entry.key, "value": to_json(entry.value), "version": entry.version}
    return shown if entry.ttl is None else shown | {"ttl": entry.ttl}


def write_line(entry: TableEntry) -> bytes:
    """An entry as a line of a dump."""
    return _encode(as_object(entry)) + b"\n"


def parse_line(line: bytes, place: str) -> tuple[str, bytes | None, float | None]:
    """The key, the value and the ttl of one line."""
    from stentor.client.table_keys import check_key
    from stentor.client.table_leases import checked_seconds

    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _wrong(place, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _wrong(place, "is not a JSON object")
    if unknown := set(found) - FIELDS:
        raise _wrong(place, f"has the unknown field {min(unknown)!r}")
    if missing := {"key", "value"} - set(found):
        raise _wrong(place, f"has no field {min(missing)!r}")
    ttl = found.get("ttl")
    try:
        return check_key(found["key"]), from_json(found["value"]), None if ttl is None else checked_seconds(ttl, "ttl")
    except InvalidArgument as error:
        raise _wrong(place, f"has what no table takes: {error.message.rstrip('.')}") from error
    except ValueError as error:
        raise _wrong(place, f"has {error}") from error


def _wrong(place: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{place[0].upper()}{place[1:]} {what}.",
        hint='Write an object such as {"key": "app/rate", "value": "100"}.',
        operation="load",
        object=place,
    )


class Gathered:
    """Changes on their way into a table: as few calls as sizes allow, each for one partition."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._changes: list[dict[str, bytes | None]] = [{} for _ in table.sequence]
        self._sizes = [0] * len(self._changes)
        self._ttls: list[float | None] = [None] * len(self._changes)
        self.loaded = 0

    def add(self, key: str, value: bytes | None, ttl: float | None = None) -> None:
        index = crc32(key.encode()) % len(self._changes)
        size = len(key) + len(value or b"")
        if self._sizes[index] + size > CHANGE_BYTES_MAX or len(self._changes[index]) >= CHANGE_KEYS_MAX:
            self._put(index)
        if ttl != self._ttls[index] and value is not None:
            self._put(index)
            self._ttls[index] = ttl
        self._changes[index][key] = value
        self._sizes[index] += size

    def _put(self, index: int) -> None:
        changes = self._changes[index]
        if not changes:
            return
        self._changes[index], self._sizes[index] = {}, 0
        self._table.put_many(changes, ttl=self._ttls[index])
        self.loaded += len(changes)

    def finish(self) -> None:
        """Put what is left."""
        for index in range(len(self._changes)):
            self._put(index)

    def add_lines(self, lines: list[bytes], name: str, first: int) -> Iterator[int]:
        """Take lines; after each, its size. Empty ones are passed over."""
        for number, line in enumerate(lines, first):
            if line.strip():
                self.add(*parse_line(line, f"{name} line {number}"))
            yield len(line) + 1
