"""Tables: `client.table("config")` is a copy of a table that is kept up to date, and the way to change it.

Reads are local. A change is made by the head of the table's chain, and is in the copy when the call returns. The copy
itself is `client.table_copy`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from stentor import limits
from stentor.client.arrow import tables
from stentor.client.convert import as_bytes
from stentor.client.help import explained
from stentor.client.table_copy import (
    TableChange,
    TableCopy,
    TableEntry,
    TableSequence,
)
from stentor.client.table_keys import check_key, condition_of
from stentor.client.table_leases import lease_of
from stentor.client.table_versions import TableValues, TableVersion, Versions
from stentor.client.table_watch import (
    AsyncTableWatch,
    TableWatch,
    call_in_task,
    call_in_thread,
    check_callback,
    tell_in_task,
    tell_in_thread,
)
from stentor.errors import ConditionFailed, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, ItemsView, KeysView, ValuesView

    from stentor.client.async_client import AsyncClient
    from stentor.client.sync_client import Client
    from stentor.client.table_backlog import OnSlowWatch
    from stentor.client.table_leases import NewLease
    from stentor.client.table_reload import TableResync
    from stentor.client.table_state import CopyState

Value = bytes | str
T = TypeVar("T")


def _given(value: Value) -> Value:
    if value is None:
        raise InvalidArgument("A key is set to a value.", hint="To remove it, use delete().")
    return value


def _entry(key: str, row: Mapping[str, bytes | None], version: int, lease: NewLease | None) -> TableEntry:
    """A key as it was put."""
    ttl, session = (None, b"") if lease is None else (lease.seconds, lease.session)
    return TableEntry(key, row[key] or b"", version, ttl, session)


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

    @property
    def session(self) -> bytes:
        """Whose ephemeral keys this object puts: `session` of their entries is the same."""
        return self._copy.leases.session

    def holds(self, key: str) -> float:
        """For how many more seconds an ephemeral key of this object is surely there, by this client's own clock.

        0.0 if it may be gone, or is another's. Whoever leads by such a key stops leading before this is 0.0. The clock
        goes on while the process or the machine is stopped, so ask right before each piece of work; `confirm` asks the
        brokers.
        """
        return self._copy.leases.holds(key)

    @property
    def state(self) -> CopyState:
        """Whether this copy is current, catching up or cut off from the brokers, and since when."""
        self._copy.check()
        return self._copy.state

    def _on_resync(self, listener: Callable[[TableResync], None]) -> Callable[[], None]:
        listeners = self._copy.resync_listeners
        listeners.append(listener)

        def stop() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return stop

    def _entries(self) -> dict[str, TableEntry]:
        self._copy.check()
        return self._copy.entries

    def __getitem__(self, key: str) -> bytes:
        copy = self._copy  # a copy that has ended has a failure: `check` is not called where nanoseconds count
        if copy.failure is not None:
            raise copy.failure
        try:
            return copy.entries[key].value
        except KeyError:
            copy.check_inside(key)
            raise

    def __contains__(self, key: object) -> bool:
        if key in self._entries():
            return True
        self._copy.check_inside(key)
        return False

    def __len__(self) -> int:
        return len(self._entries())

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries()))

    def _values(self, subtree: str) -> dict[str, bytes]:
        """Keys as they are at one sequence: whoever goes through them is not disturbed by changes."""
        return {entry.key: entry.value for entry in self.entries(subtree)}

    @overload
    def get(self, key: str, /) -> bytes | None: ...
    @overload
    def get(self, key: str, /, default: bytes | T) -> bytes | T: ...
    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or a default if it is not there."""
        copy = self._copy
        if copy.failure is not None:
            raise copy.failure
        entry = copy.entries.get(key)
        if entry is None:
            copy.check_inside(key)
            return default
        return entry.value

    def keys(self, subtree: str = "") -> KeysView[str]:
        """All keys, or those of a subtree, as they are at one sequence."""
        return self._values(subtree).keys()

    def values(self, subtree: str = "") -> ValuesView[bytes]:
        """All values, or those of a subtree, as they are at one sequence."""
        return self._values(subtree).values()

    def items(self, subtree: str = "") -> ItemsView[str, bytes]:
        """All keys with their values, or those of a subtree, as they are at one sequence."""
        return self._values(subtree).items()

    def get_many(self, keys: Iterable[str]) -> TableValues:
        """Several keys as they are at one sequence, and that sequence. Keys that are not there are left out."""
        if isinstance(keys, str | bytes):
            raise InvalidArgument(
                f"Keys are a list of them, not {type(keys).__name__}.", hint="For one key, use get()."
            )
        wanted, copy = [check_key(key) for key in keys], self._copy
        for key in wanted:
            copy.check_inside(key)
        with copy.lock:
            entries = self._entries()
            found = {key: entries[key].value for key in wanted if key in entries}
            return TableValues(found, copy.sequence)

    def entry(self, key: str) -> TableEntry | None:
        """A key with its version; None if it is not there."""
        entry = self._entries().get(key)
        if entry is None:
            self._copy.check_inside(key)
        return entry

    def entries(self, subtree: str = "") -> list[TableEntry]:
        """All keys of a subtree with their versions, as they are at one sequence."""
        wanted = self._copy.part(subtree)
        self._copy.check()
        with self._copy.lock:
            found = list(self._copy.entries.values())
        if wanted == self._copy.subtree:
            return found
        return [entry for entry in found if entry.key.startswith(wanted)]

    def to_arrow(self, subtree: str = "") -> Any:
        """The copy as a pyarrow.Table with the columns key, value and version."""
        arrow = tables()
        return arrow.entries_table(self.entries(subtree))

    def to_pandas(self, subtree: str = "") -> Any:
        """The same as a pandas.DataFrame."""
        return self.to_arrow(subtree).to_pandas()

    def _row(self, key: str, value: Value | None) -> dict[str, bytes | None]:
        self._copy.check_inside(check_key(key))
        return {key: None if value is None else as_bytes(value, "value")}

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
        ttl: float | None = None,
        ephemeral: bool = False,
        grace: float | None = None,
        timeout: float | None = None,
    ) -> TableEntry:
        """Set a key. With a condition, only if the key is at that version, or absent: else ConditionFailed.

        With `ttl` the key expires after so many seconds, unless it is put again or touched. An `ephemeral` key belongs
        to this table object: it stays while that is open and the brokers hear the client, and `grace` seconds longer.
        """
        row, conditions = (
            self._row(key, _given(value)),
            self._conditions(key, if_version, if_absent=if_absent),
        )
        lease = lease_of(self._copy, ttl, ephemeral, grace)
        (version,) = self._call(self._copy.change(row, conditions, self._copy.core.deadline(timeout), lease))
        return _entry(key, row, version, lease)

    def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> None:
        """Remove a key; one that is not there stays away. With a condition, only if it is at that version."""
        row, conditions = self._row(key, None), self._conditions(key, if_version, if_absent=False)
        self._call(self._copy.change(row, conditions, self._copy.core.deadline(timeout)))

    def put_many(
        self, changes: Mapping[str, Value | None], *, ttl: float | None = None, timeout: float | None = None
    ) -> None:
        """Set keys, or remove those whose value is None: all at once, so that nobody sees only some of it."""
        lease = lease_of(self._copy, ttl)
        self._call(self._copy.change(self._rows(changes), {}, self._copy.core.deadline(timeout), lease))

    def add(self, key: str, amount: int = 1, *, ttl: float | None = None, timeout: float | None = None) -> int:
        """Count: add to the number that a key holds as text, or begin it; the new number. Nobody's count is lost."""
        deadline, lease = self._copy.core.deadline(timeout), lease_of(self._copy, ttl)
        while True:
            value, conditions = self._sum(key, amount)
            try:
                self._call(self._copy.change({key: value}, conditions, deadline, lease))
            except ConditionFailed:
                self._call(self._copy.catch_up(deadline))
            else:
                return int(value)

    def confirm(self, key: str, *, timeout: float | None = None) -> float:
        """Ask the brokers, unless `holds` is certain: for how many seconds an ephemeral key of this object is surely
        there. 0.0 if it is gone, or another's. Use it when this process may have stood still.
        """
        left: float = self._call(self._copy.leases.confirm(check_key(key), self._copy.core.deadline(timeout)))
        return left

    def touch(self, key: str, *, timeout: float | None = None) -> None:
        """Let the ttl of a key begin anew. KeyNotFound if the key is not there; InvalidArgument if it has no ttl."""
        self._call(self._copy.touch(check_key(key), self._copy.core.deadline(timeout)))

    def history(self, key: str, *, limit: int | None = 100, timeout: float | None = None) -> list[TableVersion]:
        """The versions of a key that the log still has, the newest first, also deletions. It reads the log."""
        found = Versions(self._copy, key, limit)
        with self._client.read(self.name, partition=found.partition, timeout=timeout) as rows:
            for row in rows:
                found.add(row)
        return found.newest_first()

    def wait(self, sequence: TableSequence, timeout: float | None = None) -> None:
        """Wait until this copy has everything up to a sequence."""
        self._call(self._copy.wait(sequence, self._copy.core.deadline(timeout)))

    def sync(self, timeout: float | None = None) -> TableSequence:
        """Wait until this copy has everything that is committed by now; its sequence then."""
        self._call(self._copy.catch_up(self._copy.core.deadline(timeout)))
        return self.sequence

    def watch(
        self,
        subtree: str = "",
        *,
        start: TableSequence | None = None,
        limit: int = limits.TABLE_WATCH_CHANGES,
        on_slow: OnSlowWatch = "merge",
    ) -> TableWatch:
        """Changes of a subtree from now on, or from a sequence on; each with the key as it was and as it is.

        A `start` in the past reads the log from its beginning, and raises OffsetOutOfRange if that is gone.
        """
        return TableWatch(self._client, self._copy, subtree, start, limit, on_slow)

    def on_change(self, subtree: str, callback: Callable[[TableChange], Any]) -> Callable[[], None]:
        """Call a function with every change of a subtree from now on; returns a function that ends it.

        It is called with one change after the other: in a thread of its own, or by an `async` table in the loop, where
        it is awaited if it can be. If it raises, that is logged, and it is called with the next change.
        """
        check_callback(callback)
        return call_in_thread(self.watch(subtree), self.name, callback)

    def on_resync(self, callback: Callable[[TableResync], Any]) -> Callable[[], None]:
        """Call a function each time this copy was taken anew; returns a function that ends it.

        That happens when the brokers no longer have the changes that come next for a copy which was cut off for long.
        The copy stays readable meanwhile. Watchers are told the difference, one change for each key, before this.
        """
        check_callback(callback)
        return self._on_resync(tell_in_thread(self.name, callback))

    def close(self) -> None:
        """Let go of the copy."""
        if not self._client._closed:  # noqa: SLF001
            self._call(self._copy.close())

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
        ttl: float | None = None,
        ephemeral: bool = False,
        grace: float | None = None,
        timeout: float | None = None,
    ) -> TableEntry:
        """Set a key. With a condition, only if the key is at that version, or absent: else ConditionFailed.

        With `ttl` the key expires after so many seconds, unless it is put again or touched. An `ephemeral` key belongs
        to this table object: it stays while that is open and the brokers hear the client, and `grace` seconds longer.
        """
        row, conditions = (
            self._row(key, _given(value)),
            self._conditions(key, if_version, if_absent=if_absent),
        )
        lease = lease_of(self._copy, ttl, ephemeral, grace)
        (version,) = await self._copy.change(row, conditions, self._copy.core.deadline(timeout), lease)
        return _entry(key, row, version, lease)

    async def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> None:
        """Remove a key; one that is not there stays away. With a condition, only if it is at that version."""
        row, conditions = self._row(key, None), self._conditions(key, if_version, if_absent=False)
        await self._copy.change(row, conditions, self._copy.core.deadline(timeout))

    async def put_many(
        self, changes: Mapping[str, Value | None], *, ttl: float | None = None, timeout: float | None = None
    ) -> None:
        """Set keys, or remove those whose value is None: all at once, so that nobody sees only some of it."""
        lease = lease_of(self._copy, ttl)
        await self._copy.change(self._rows(changes), {}, self._copy.core.deadline(timeout), lease)

    async def add(self, key: str, amount: int = 1, *, ttl: float | None = None, timeout: float | None = None) -> int:
        """Count: add to the number that a key holds as text, or begin it; the new number. Nobody's count is lost."""
        deadline, lease = self._copy.core.deadline(timeout), lease_of(self._copy, ttl)
        while True:
            value, conditions = self._sum(key, amount)
            try:
                await self._copy.change({key: value}, conditions, deadline, lease)
            except ConditionFailed:
                await self._copy.catch_up(deadline)
            else:
                return int(value)

    async def confirm(self, key: str, *, timeout: float | None = None) -> float:
        """Ask the brokers, unless `holds` is certain: for how many seconds an ephemeral key of this object is surely
        there. 0.0 if it is gone, or another's. Use it when this process may have stood still.
        """
        return await self._copy.leases.confirm(check_key(key), self._copy.core.deadline(timeout))

    async def touch(self, key: str, *, timeout: float | None = None) -> None:
        """Let the ttl of a key begin anew. KeyNotFound if the key is not there; InvalidArgument if it has no ttl."""
        await self._copy.touch(check_key(key), self._copy.core.deadline(timeout))

    async def history(self, key: str, *, limit: int | None = 100, timeout: float | None = None) -> list[TableVersion]:
        """The versions of a key that the log still has, the newest first, also deletions. It reads the log."""
        found = Versions(self._copy, key, limit)
        async with self._client.read(self.name, partition=found.partition, timeout=timeout) as rows:
            async for row in rows:
                found.add(row)
        return found.newest_first()

    async def wait(self, sequence: TableSequence, timeout: float | None = None) -> None:
        """Wait until this copy has everything up to a sequence."""
        await self._copy.wait(sequence, self._copy.core.deadline(timeout))

    async def sync(self, timeout: float | None = None) -> TableSequence:
        """Wait until this copy has everything that is committed by now; its sequence then."""
        await self._copy.catch_up(self._copy.core.deadline(timeout))
        return self.sequence

    def watch(
        self,
        subtree: str = "",
        *,
        start: TableSequence | None = None,
        limit: int = limits.TABLE_WATCH_CHANGES,
        on_slow: OnSlowWatch = "merge",
    ) -> AsyncTableWatch:
        """Changes of a subtree from now on, or from a sequence on; each with the key as it was and as it is.

        A `start` in the past reads the log from its beginning, and raises OffsetOutOfRange if that is gone.
        """
        return AsyncTableWatch(self._client, self._copy, subtree, start, limit, on_slow)

    def on_change(self, subtree: str, callback: Callable[[TableChange], Any]) -> Callable[[], None]:
        """Call a function with every change of a subtree from now on; returns a function that ends it.

        It is called with one change after the other: in a thread of its own, or by an `async` table in the loop, where
        it is awaited if it can be. If it raises, that is logged, and it is called with the next change.
        """
        check_callback(callback)
        return call_in_task(self.watch(subtree), self.name, callback)

    def on_resync(self, callback: Callable[[TableResync], Any]) -> Callable[[], None]:
        """Call a function each time this copy was taken anew; returns a function that ends it.

        That happens when the brokers no longer have the changes that come next for a copy which was cut off for long.
        The copy stays readable meanwhile. Watchers are told the difference, one change for each key, before this.
        """
        check_callback(callback)
        return self._on_resync(tell_in_task(self.name, callback))

    async def close(self) -> None:
        """Let go of the copy."""
        await self._copy.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
