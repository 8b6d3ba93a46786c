"""Tables: `client.table("config")` is a copy of a table that is kept up to date, and the way to change it.

Reads are local. A change is made by the head of the table's chain, and is in the copy when the call returns. The copy
itself is `client.table_copy`'s.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from stentor.client.arrow import tables
from stentor.client.convert import as_bytes
from stentor.client.help import explained
from stentor.client.table_copy import (
    TableChange,
    TableCopy,
    TableEntry,
    TableSequence,
    check_key,
    check_subtree,
    condition_of,
)
from stentor.errors import ConditionFailed, InvalidArgument, StentorError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, ItemsView, KeysView, ValuesView

    from stentor.client.async_client import AsyncClient
    from stentor.client.sync_client import Client

Value = bytes | str
T = TypeVar("T")


def _given(value: Value) -> Value:
    if value is None:
        raise InvalidArgument("A key is set to a value.", hint="To remove it, use delete().")
    return value


class _TableFace(Mapping[str, bytes]):
    """What the sync and the async table share: reading the copy."""

    def __init__(self, copy: TableCopy) -> None:
        self._copy = copy

    @property
    def name(self) -> str:
        """The table's name."""
        return self._copy.name

    @property
    def sequence(self) -> TableSequence:
        """How far this copy is. Another copy that has waited for it has at least the same changes."""
        return self._copy.sequence

    def _entries(self) -> dict[str, TableEntry]:
        self._copy.check()
        return self._copy.entries

    def __getitem__(self, key: str) -> bytes:
        return self._entries()[key].value

    def __contains__(self, key: object) -> bool:
        return key in self._entries()

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries()))

    def _values(self) -> dict[str, bytes]:
        """All keys as they are at one sequence: whoever goes through them is not disturbed by changes."""
        return {entry.key: entry.value for entry in self.entries()}

    @overload
    def get(self, key: str, /) -> bytes | None: ...
    @overload
    def get(self, key: str, /, default: bytes | T) -> bytes | T: ...
    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or a default if it is not there."""
        entry = self._entries().get(key)
        return default if entry is None else entry.value

    def keys(self) -> KeysView[str]:
        """All keys, as they are at one sequence."""
        return self._values().keys()

    def values(self) -> ValuesView[bytes]:
        """All values, as they are at one sequence."""
        return self._values().values()

    def items(self) -> ItemsView[str, bytes]:
        """All keys with their values, as they are at one sequence."""
        return self._values().items()

    def entry(self, key: str) -> TableEntry | None:
        """A key with its version; None if it is not there."""
        return self._entries().get(key)

    def entries(self, subtree: str = "") -> list[TableEntry]:
        """All keys of a subtree with their versions, as they are at one sequence."""
        wanted = check_subtree(subtree)
        self._copy.check()
        with self._copy.lock:
            found = list(self._copy.entries.values())
        return [entry for entry in found if entry.key.startswith(wanted)] if wanted else found

    def to_arrow(self, subtree: str = "") -> Any:
        """The copy as a pyarrow.Table with the columns key, value and version."""
        arrow = tables()
        return arrow.entries_table(self.entries(subtree))

    def to_pandas(self, subtree: str = "") -> Any:
        """The same as a pandas.DataFrame."""
        return self.to_arrow(subtree).to_pandas()

    def _row(self, key: str, value: Value | None) -> dict[str, bytes | None]:
        return {check_key(key): None if value is None else as_bytes(value, "value")}

    def _rows(self, changes: Mapping[str, Value | None]) -> dict[str, bytes | None]:
        if not changes:
            raise InvalidArgument("A change names at least one key.")
        return {key: row for name, value in changes.items() for key, row in self._row(name, value).items()}

    def _conditions(self, key: str, if_version: int | None, *, if_absent: bool) -> dict[str, int]:
        condition = condition_of(if_version, if_absent=if_absent)
        return {} if condition is None else {key: condition}

    def _sum(self, key: str, amount: int) -> tuple[bytes, dict[str, int]]:
        """The value of a counter after an addition, and what that depends on."""
        if isinstance(amount, bool) or not isinstance(amount, int):
            raise InvalidArgument(f"A counter counts by whole numbers, not by {amount!r}.")
        entry = self.entry(check_key(key))
        if entry is None:
            return b"%d" % amount, self._conditions(key, None, if_absent=True)
        try:
            before = int(entry.value)
        except ValueError:
            raise InvalidArgument(
                f"{key} of table {self.name} is no counter: its value is {entry.value[:40]!r}.", object=self.name
            ) from None
        return b"%d" % (before + amount), self._conditions(key, entry.version, if_absent=False)


@explained("Table")
class Table(_TableFace):
    """A copy of a table. Reads are local and thread-safe; use as a context manager.

    Read it as a dict of text to bytes. `put`, `delete`, `put_many` and `add` change the table for everyone, and return
    when the change is committed and in this copy.
    """

    def __init__(self, client: Client, copy: TableCopy) -> None:
        super().__init__(copy)
        self._client = client

    def _call(self, work: Any) -> Any:
        return self._client._call(work)  # noqa: SLF001 - two halves of one thing

    def put(
        self,
        key: str,
        value: Value,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        timeout: float | None = None,
    ) -> TableEntry:
        """Set a key. With a condition, only if the key is at that version, or absent: else ConditionFailed."""
        row, conditions = (
            self._row(key, _given(value)),
            self._conditions(key, if_version, if_absent=if_absent),
        )
        (version,) = self._call(self._copy.change(row, conditions, self._copy.core.deadline(timeout)))
        return TableEntry(key, row[key] or b"", version)

    def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> None:
        """Remove a key; one that is not there stays away. With a condition, only if it is at that version."""
        row, conditions = self._row(key, None), self._conditions(key, if_version, if_absent=False)
        self._call(self._copy.change(row, conditions, self._copy.core.deadline(timeout)))

    def put_many(self, changes: Mapping[str, Value | None], *, timeout: float | None = None) -> None:
        """Set keys, or remove those whose value is None: all at once, so that nobody sees only some of it."""
        self._call(self._copy.change(self._rows(changes), {}, self._copy.core.deadline(timeout)))

    def add(self, key: str, amount: int = 1, *, timeout: float | None = None) -> int:
        """Count: add to the number that a key holds as text, or begin it; the new number. Nobody's count is lost."""
        deadline = self._copy.core.deadline(timeout)
        while True:
            value, conditions = self._sum(key, amount)
            try:
                self._call(self._copy.change({key: value}, conditions, deadline))
            except ConditionFailed:
                self._call(self._copy.catch_up(deadline))
            else:
                return int(value)

    def wait(self, sequence: TableSequence, timeout: float | None = None) -> None:
        """Wait until this copy has everything up to a sequence."""
        self._call(self._copy.wait(tuple(sequence), self._copy.core.deadline(timeout)))

    def sync(self, timeout: float | None = None) -> TableSequence:
        """Wait until this copy has everything that is committed by now; its sequence then."""
        self._call(self._copy.catch_up(self._copy.core.deadline(timeout)))
        return self.sequence

    def watch(self, subtree: str = "") -> TableWatch:
        """Changes of a subtree from now on, each with the key as it was and as it is."""
        return TableWatch(self._copy, check_subtree(subtree))

    def close(self) -> None:
        """Let go of the copy."""
        if not self._client._closed:  # noqa: SLF001
            self._call(self._copy.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TableWatch:
    """Changes as they come: iterate, or `get(timeout=...)`. Use as a context manager."""

    def __init__(self, copy: TableCopy, subtree: str) -> None:
        self._copy = copy
        self._subtree = subtree
        self._inbox: queue.SimpleQueue[TableChange | StentorError] = queue.SimpleQueue()
        copy.watch(self._take)

    def _take(self, change: TableChange | StentorError) -> None:
        if isinstance(change, StentorError) or change.key.startswith(self._subtree):
            self._inbox.put(change)

    def get(self, timeout: float | None = None) -> TableChange:
        """The next change; DeadlineExceeded if none comes in time."""
        try:
            found = self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise self._copy.core.late("watch", timeout or 0.0) from None
        if isinstance(found, StentorError):
            self._inbox.put(found)
            raise found
        return found

    def __iter__(self) -> Iterator[TableChange]:
        while True:
            yield self.get()

    def close(self) -> None:
        """No more changes."""
        self._copy.unwatch(self._take)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("Table", asynchronous=True)
class AsyncTable(_TableFace):
    """The same for `async` code."""

    def __init__(self, client: AsyncClient, copy: TableCopy) -> None:
        super().__init__(copy)
        self._client = client

    async def put(
        self,
        key: str,
        value: Value,
        *,
        if_version: int | None = None,
        if_absent: bool = False,
        timeout: float | None = None,
    ) -> TableEntry:
        """Set a key. With a condition, only if the key is at that version, or absent: else ConditionFailed."""
        row, conditions = (
            self._row(key, _given(value)),
            self._conditions(key, if_version, if_absent=if_absent),
        )
        (version,) = await self._copy.change(row, conditions, self._copy.core.deadline(timeout))
        return TableEntry(key, row[key] or b"", version)

    async def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> None:
        """Remove a key; one that is not there stays away. With a condition, only if it is at that version."""
        row, conditions = self._row(key, None), self._conditions(key, if_version, if_absent=False)
        await self._copy.change(row, conditions, self._copy.core.deadline(timeout))

    async def put_many(self, changes: Mapping[str, Value | None], *, timeout: float | None = None) -> None:
        """Set keys, or remove those whose value is None: all at once, so that nobody sees only some of it."""
        await self._copy.change(self._rows(changes), {}, self._copy.core.deadline(timeout))

    async def add(self, key: str, amount: int = 1, *, timeout: float | None = None) -> int:
        """Count: add to the number that a key holds as text, or begin it; the new number. Nobody's count is lost."""
        deadline = self._copy.core.deadline(timeout)
        while True:
            value, conditions = self._sum(key, amount)
            try:
                await self._copy.change({key: value}, conditions, deadline)
            except ConditionFailed:
                await self._copy.catch_up(deadline)
            else:
                return int(value)

    async def wait(self, sequence: TableSequence, timeout: float | None = None) -> None:
        """Wait until this copy has everything up to a sequence."""
        await self._copy.wait(tuple(sequence), self._copy.core.deadline(timeout))

    async def sync(self, timeout: float | None = None) -> TableSequence:
        """Wait until this copy has everything that is committed by now; its sequence then."""
        await self._copy.catch_up(self._copy.core.deadline(timeout))
        return self.sequence

    def watch(self, subtree: str = "") -> AsyncTableWatch:
        """Changes of a subtree from now on, each with the key as it was and as it is."""
        return AsyncTableWatch(self._copy, check_subtree(subtree))

    async def close(self) -> None:
        """Let go of the copy."""
        await self._copy.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncTableWatch:
    """The same for `async` code."""

    def __init__(self, copy: TableCopy, subtree: str) -> None:
        self._copy = copy
        self._subtree = subtree
        self._inbox: asyncio.Queue[TableChange | StentorError] = asyncio.Queue()
        copy.watch(self._take)

    def _take(self, change: TableChange | StentorError) -> None:
        if isinstance(change, StentorError) or change.key.startswith(self._subtree):
            self._inbox.put_nowait(change)

    async def get(self, timeout: float | None = None) -> TableChange:
        """The next change; DeadlineExceeded if none comes in time."""
        try:
            found = await asyncio.wait_for(self._inbox.get(), timeout)
        except TimeoutError:
            raise self._copy.core.late("watch", timeout or 0.0) from None
        if isinstance(found, StentorError):
            self._inbox.put_nowait(found)
            raise found
        return found

    async def __aiter__(self) -> AsyncIterator[TableChange]:
        while True:
            yield await self.get()

    async def close(self) -> None:
        """No more changes."""
        self._copy.unwatch(self._take)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
