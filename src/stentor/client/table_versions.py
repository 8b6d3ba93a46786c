"""What a table was: the versions of a key that its log still has, and several keys at one sequence."""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stentor.client.convert import check_limit
from stentor.client.table_copy import TableSequence
from stentor.client.table_keys import check_key

if TYPE_CHECKING:
    from stentor.client.message import Message
    from stentor.client.table_copy import TableCopy


class TableVersion(msgspec.Struct, frozen=True):
    """A key as it was put, or its deletion."""

    key: str
    value: bytes | None  # None: it was deleted
    version: int
    timestamp: datetime

    @property
    def deleted(self) -> bool:
        """Whether this change deleted the key."""
        return self.value is None


class TableValues(NamedTuple):
    """Several keys at one sequence."""

    values: dict[str, bytes]  # without those that are not there
    sequence: TableSequence


class Versions:
    """Gathers the versions of one key from the rows of its partition."""

    def __init__(self, copy: TableCopy, key: str, limit: int | None) -> None:
        check_limit(limit)
        copy.check()
        self._copy = copy
        self._key = check_key(key)
        copy.check_inside(key)
        self._bytes = key.encode()
        self._found: deque[TableVersion] = deque(maxlen=limit)
        self.partition = copy.partition_of(key)

    def add(self, row: Message) -> None:
        """A row of the log, in order."""
        if row.key == self._bytes:
            self._found.append(TableVersion(self._key, row.value, row.offset, row.timestamp))

    def newest_first(self) -> list[TableVersion]:
        """All that were found, of a table that is still the same."""
        self._copy.check()
        return list(reversed(self._found))
