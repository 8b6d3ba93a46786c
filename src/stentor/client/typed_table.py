"""Tables whose values are of one type: `client.table("limits", type=Limit)`.

A copy holds bytes, as every copy does. Values are encoded and checked when they are put, and decoded when they are
read: whoever reads a key gets a value of its own, and may change it without changing the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, cast, overload

import msgspec

from stentor.client.table import AsyncTable, Table
from stentor.client.table_watch import call_in_task, call_in_thread, check_callback
from stentor.client.typed import Codec
from stentor.errors import DecodeFailed, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, ItemsView, KeysView, ValuesView
    from typing import Unpack

    from stentor.client.options import Format, PutManyOptions, PutOptions, WatchOptions
    from stentor.client.table_copy import TableChange, TableEntry, TableSequence
    from stentor.client.table_reload import TableResync
    from stentor.client.table_state import CopyState
    from stentor.client.table_watch import AsyncTableWatch, TableWatch

T = TypeVar("T")
Inner = TypeVar("Inner")
D = TypeVar("D")


class TypedEntry(msgspec.Struct, Generic[T], frozen=True):
    """A key of a typed table as it is at some version."""

    key: str
    value: T
    version: int  # grows with every change of the key; for `if_version`
    ttl: float | None = None  # it expires so many seconds after it was last put or touched; None: never
    session: bytes = b""  # of an ephemeral key: the session that it belongs to


class TypedChange(msgspec.Struct, Generic[T], frozen=True):
    """What happened to a key of a typed table."""

    key: str
    old: TypedEntry[T] | None  # None: it was not there
    new: TypedEntry[T] | None  # None: it was deleted
    change: TableChange  # the same with bytes, and everything else that is known of it


class TypedVersion(msgspec.Struct, Generic[T], frozen=True):
    """A key as it was put, or its deletion."""

    key: str
    value: T | None  # None: it was deleted
    version: int
    timestamp: datetime


class TypedValues(NamedTuple, Generic[T]):
    """Several keys at one sequence."""

    values: dict[str, T]  # without those that are not there
    sequence: TableSequence


class ValueCodec(Generic[T]):
    """Values of one table to bytes and back; what does not fit is refused with its key and field."""

    def __init__(self, table: str, kind: Any, format: Format) -> None:  # noqa: A002 - the word of the API
        self._codec: Codec[T] = Codec(kind, format, "raise")
        self._table = table

    def bytes_of(self, key: str, value: T) -> bytes:
        """A value for a key."""
        if value is None:
            raise InvalidArgument("A key is set to a value.", hint="To remove it, use delete().")
        encoded = self._codec.encode(value, self._table, f"The value of key {key} of table {self._table}")
        assert encoded is not None
        return encoded

    def value_of(self, key: str, value: bytes, version: int) -> T:
        """A value that the table holds."""
        try:
            return self._codec.decode(value)
        except (ValueError, RecursionError) as error:
            raise DecodeFailed(
                f"The value of key {key} of table {self._table} does not fit {self._codec.name}: {Codec.why(error)}.",
                hint="Put a value that fits, or open the table without a type.",
                operation="read",
                object=key,
                offset=version,
            ) from error

    def entry(self, entry: TableEntry) -> TypedEntry[T]:
        """An entry with its value decoded."""
        value = self.value_of(entry.key, entry.value, entry.version)
        return TypedEntry(entry.key, value, entry.version, entry.ttl, entry.session)

    def change(self, change: TableChange) -> TypedChange[T]:
        """A change with its values decoded."""
        old, new = (None if entry is None else self.entry(entry) for entry in (change.old, change.new))
        return TypedChange(change.key, old, new, change)


class _TypedFace(Mapping[str, T], Generic[T, Inner]):
    """What both typed tables share: reading."""

    def __init__(self, inner: Inner, codec: ValueCodec[T]) -> None:
        self._inner = inner
        self._codec = codec

    @property
    def _bytes(self) -> Table:
        return cast("Table", self._inner)  # to read them, both are one

    @property
    def name(self) -> str:
        """The table's name."""
        return self._bytes.name

    @property
    def sequence(self) -> TableSequence:
        """How far this copy is. Another copy that has waited for it has at least the same changes."""
        return self._bytes.sequence

    @property
    def state(self) -> CopyState:
        """Whether this copy is current, catching up or cut off from the brokers, and since when."""
        return self._bytes.state

    @property
    def session(self) -> bytes:
        """Whose ephemeral keys this object puts: `session` of their entries is the same."""
        return self._bytes.session

    def holds(self, key: str) -> float:
        """For how many more seconds an ephemeral key of this object is surely there; see Table.holds."""
        return self._bytes.holds(key)

    def __getitem__(self, key: str) -> T:
        entry = self._bytes.entry(key)
        if entry is None:
            raise KeyError(key)
        return self._codec.value_of(key, entry.value, entry.version)

    def __contains__(self, key: object) -> bool:
        return key in self._bytes

    def __len__(self) -> int:
        return len(self._bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._bytes)

    @overload
    def get(self, key: str, /) -> T | None: ...
    @overload
    def get(self, key: str, /, default: T | D) -> T | D: ...
    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or a default if it is not there."""
        entry = self.entry(key)
        return default if entry is None else entry.value

    def get_many(self, keys: Iterable[str]) -> TypedValues[T]:
        """Several keys as they are at one sequence, and that sequence. Keys that are not there are left out."""
        values, sequence = self._bytes.get_many(keys)
        return TypedValues({key: self._codec.value_of(key, value, -1) for key, value in values.items()}, sequence)

    def _values(self, subtree: str) -> dict[str, T]:
        return {entry.key: entry.value for entry in self.entries(subtree)}

    def keys(self, subtree: str = "") -> KeysView[str]:
        """All keys, or those of a subtree, as they are at one sequence."""
        return self._bytes.keys(subtree)

    def values(self, subtree: str = "") -> ValuesView[T]:
        """All values, or those of a subtree, as they are at one sequence."""
        return self._values(subtree).values()

    def items(self, subtree: str = "") -> ItemsView[str, T]:
        """All keys with their values, or those of a subtree, as they are at one sequence."""
        return self._values(subtree).items()

    def entry(self, key: str) -> TypedEntry[T] | None:
        """A key with its version; None if it is not there."""
        entry = self._bytes.entry(key)
        return None if entry is None else self._codec.entry(entry)

    def entries(self, subtree: str = "") -> list[TypedEntry[T]]:
        """All keys of a subtree with their versions, as they are at one sequence."""
        return [self._codec.entry(entry) for entry in self._bytes.entries(subtree)]

    def to_arrow(self, subtree: str = "") -> Any:
        """The copy as a pyarrow.Table with the columns key, value and version; values are as stored."""
        return self._bytes.to_arrow(subtree)

    def to_pandas(self, subtree: str = "") -> Any:
        """The same as a pandas.DataFrame."""
        return self._bytes.to_pandas(subtree)

    def _rows(self, changes: Mapping[str, T | None]) -> dict[str, bytes | str | None]:
        return {key: None if value is None else self._codec.bytes_of(key, value) for key, value in changes.items()}

    def _versions(self, found: list[Any]) -> list[TypedVersion[T]]:
        return [
            TypedVersion(
                each.key,
                None if each.value is None else self._codec.value_of(each.key, each.value, each.version),
                each.version,
                each.timestamp,
            )
            for each in found
        ]


class TypedTable(_TypedFace[T, Table]):
    """A copy of a table whose values are of one type. See Table."""

    def put(self, key: str, value: T, **options: Unpack[PutOptions]) -> TypedEntry[T]:
        """Set a key. InvalidArgument if the value does not fit the type. See Table.put."""
        made = self._inner.put(key, self._codec.bytes_of(key, value), **options)
        return TypedEntry(key, value, made.version, made.ttl, made.session)

    def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> None:
        """Remove a key; one that is not there stays away. With a condition, only if it is at that version."""
        self._inner.delete(key, if_version=if_version, timeout=timeout)

    def put_many(self, changes: Mapping[str, T | None], **options: Unpack[PutManyOptions]) -> None:
        """Set keys, or remove those whose value is None: all at once. If one does not fit, nothing is changed."""
        self._inner.put_many(self._rows(changes), **options)

    def confirm(self, key: str, *, timeout: float | None = None) -> float:
        """Ask the brokers, unless `holds` is certain, how long an ephemeral key surely stays; see Table.confirm."""
        return self._inner.confirm(key, timeout=timeout)

    def touch(self, key: str, *, timeout: float | None = None) -> None:
        """Let the ttl of a key begin anew. KeyNotFound if the key is not there; InvalidArgument if it has no ttl."""
        self._inner.touch(key, timeout=timeout)

    def history(self, key: str, *, limit: int | None = 100, timeout: float | None = None) -> list[TypedVersion[T]]:
        """The versions of a key that the log still has, the newest first, also deletions. It reads the log."""
        return self._versions(self._inner.history(key, limit=limit, timeout=timeout))

    def wait(self, sequence: TableSequence, timeout: float | None = None) -> None:
        """Wait until this copy has everything up to a sequence."""
        self._inner.wait(sequence, timeout)

    def sync(self, timeout: float | None = None) -> TableSequence:
        """Wait until this copy has everything that is committed by now; its sequence then."""
        return self._inner.sync(timeout)

    def watch(self, subtree: str = "", **options: Unpack[WatchOptions]) -> TypedTableWatch[T]:
        """Changes of a subtree from now on, or from a sequence on. See Table.watch."""
        return TypedTableWatch(self._inner.watch(subtree, **options), self._codec)

    def on_change(self, subtree: str, callback: Callable[[TypedChange[T]], Any]) -> Callable[[], None]:
        """Call a function with every change of a subtree from now on; returns a function that ends it."""
        check_callback(callback)
        codec, watch = self._codec, self._inner.watch(subtree)
        return call_in_thread(watch, self.name, lambda change: callback(codec.change(change)))

    def on_resync(self, callback: Callable[[TableResync], Any]) -> Callable[[], None]:
        """Call a function each time this copy was taken anew; returns a function that ends it."""
        return self._inner.on_resync(callback)

    def close(self) -> None:
        """Let go of the copy."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TypedTableWatch(Generic[T]):
    """Changes of a typed table as they come: iterate, or `get(timeout=...)`. Use as a context manager."""

    def __init__(self, inner: TableWatch, codec: ValueCodec[T]) -> None:
        self._inner = inner
        self._codec = codec

    @property
    def sequence(self) -> TableSequence:
        """Everything before it was taken from this watch. Give it as `start=` to another one, to go on there."""
        return self._inner.sequence

    def get(self, timeout: float | None = None) -> TypedChange[T]:
        """The next change; DeadlineExceeded if none comes in time."""
        return self._codec.change(self._inner.get(timeout))

    def __iter__(self) -> Iterator[TypedChange[T]]:
        for change in self._inner:
            yield self._codec.change(change)

    def close(self) -> None:
        """No more changes; whoever waits for one is told, and loops end."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTypedTable(_TypedFace[T, AsyncTable]):
    """A copy of a table whose values are of one type, for `async` code. See AsyncTable."""

    async def put(self, key: str, value: T, **options: Unpack[PutOptions]) -> TypedEntry[T]:
        """Set a key. InvalidArgument if the value does not fit the type. See AsyncTable.put."""
        made = await self._inner.put(key, self._codec.bytes_of(key, value), **options)
        return TypedEntry(key, value, made.version, made.ttl, made.session)

    async def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> None:
        """Remove a key; one that is not there stays away. With a condition, only if it is at that version."""
        await self._inner.delete(key, if_version=if_version, timeout=timeout)

    async def put_many(self, changes: Mapping[str, T | None], **options: Unpack[PutManyOptions]) -> None:
        """Set keys, or remove those whose value is None: all at once. If one does not fit, nothing is changed."""
        await self._inner.put_many(self._rows(changes), **options)

    async def confirm(self, key: str, *, timeout: float | None = None) -> float:
        """Ask the brokers, unless `holds` is certain, how long an ephemeral key surely stays; see Table.confirm."""
        return await self._inner.confirm(key, timeout=timeout)

    async def touch(self, key: str, *, timeout: float | None = None) -> None:
        """Let the ttl of a key begin anew. KeyNotFound if the key is not there; InvalidArgument if it has no ttl."""
        await self._inner.touch(key, timeout=timeout)

    async def history(
        self, key: str, *, limit: int | None = 100, timeout: float | None = None
    ) -> list[TypedVersion[T]]:
        """The versions of a key that the log still has, the newest first, also deletions. It reads the log."""
        return self._versions(await self._inner.history(key, limit=limit, timeout=timeout))

    async def wait(self, sequence: TableSequence, timeout: float | None = None) -> None:
        """Wait until this copy has everything up to a sequence."""
        await self._inner.wait(sequence, timeout)

    async def sync(self, timeout: float | None = None) -> TableSequence:
        """Wait until this copy has everything that is committed by now; its sequence then."""
        return await self._inner.sync(timeout)

    def watch(self, subtree: str = "", **options: Unpack[WatchOptions]) -> AsyncTypedTableWatch[T]:
        """Changes of a subtree from now on, or from a sequence on. See AsyncTable.watch."""
        return AsyncTypedTableWatch(self._inner.watch(subtree, **options), self._codec)

    def on_change(self, subtree: str, callback: Callable[[TypedChange[T]], Any]) -> Callable[[], None]:
        """Call a function with every change of a subtree from now on; returns a function that ends it."""
        check_callback(callback)
        codec, watch = self._codec, self._inner.watch(subtree)
        return call_in_task(watch, self.name, lambda change: callback(codec.change(change)))

    def on_resync(self, callback: Callable[[TableResync], Any]) -> Callable[[], None]:
        """Call a function each time this copy was taken anew; returns a function that ends it."""
        return self._inner.on_resync(callback)

    async def close(self) -> None:
        """Let go of the copy."""
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncTypedTableWatch(Generic[T]):
    """The same for `async` code."""

    def __init__(self, inner: AsyncTableWatch, codec: ValueCodec[T]) -> None:
        self._inner = inner
        self._codec = codec

    @property
    def sequence(self) -> TableSequence:
        """Everything before it was taken from this watch. Give it as `start=` to another one, to go on there."""
        return self._inner.sequence

    async def get(self, timeout: float | None = None) -> TypedChange[T]:
        """The next change; DeadlineExceeded if none comes in time."""
        return self._codec.change(await self._inner.get(timeout))

    async def __aiter__(self) -> AsyncIterator[TypedChange[T]]:
        async for change in self._inner:
            yield self._codec.change(change)

    async def close(self) -> None:
        """No more changes; whoever waits for one is told, and loops end."""
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
