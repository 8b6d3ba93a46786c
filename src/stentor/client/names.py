"""Names: where services are. A name service on a table, `client.names`.

    register("billing/1", "10.0.0.5:80") ──► key billing/1 of the table _names ──► a copy in every client that resolves
                                                                                    └─► resolve("billing"): one of them

A registration is an ephemeral key: it goes when its client closes, and a grace after its client has died. A client that
was cut off for longer than that registers its names again when it is back. The table is made at first use.
"""

from __future__ import annotations

import asyncio
import logging
import random
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec

from stentor import limits
from stentor.client.deadline import Deadline
from stentor.client.help import explained
from stentor.client.opening import Opening
from stentor.client.table import AsyncTable, Table
from stentor.client.table_copy import TableCopy
from stentor.client.table_keys import check_key
from stentor.client.table_leases import lease_of
from stentor.core.table import ABSENT
from stentor.errors import ConditionFailed, InvalidArgument, KeyNotFound, StentorError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from stentor.client.async_client import AsyncClient
    from stentor.client.sync_client import Client
    from stentor.client.table_copy import Overtaken, TableChange
    from stentor.client.table_leases import NewLease
    from stentor.client.table_watch import AsyncTableWatch, TableWatch

logger = logging.getLogger(__name__)

NAMES_TABLE: Final = "_names"
"""The table that holds all names."""

_AGAIN_S: Final = 60.0  # for one attempt to register a name again; then comes the next


class NameChange(msgspec.Struct, frozen=True):
    """What happened to a name."""

    name: str
    old: str | None  # the address before; None: it was not registered
    new: str | None  # the address now; None: it is gone
    expired: bool = False  # it is gone because its client was not heard for its grace


class _Registration(NamedTuple):
    """A name of this client that must not get lost."""

    value: bytes
    lease: NewLease


def check_name(name: object) -> str:
    """A name is a path: words with slashes between them."""
    try:
        return check_key(name)
    except InvalidArgument:
        raise InvalidArgument(
            f"{name!r} is no name of a service.", hint="Use a path such as billing/1: words with slashes between."
        ) from None


def _check_address(address: object) -> bytes:
    if not isinstance(address, str) or not address:
        raise InvalidArgument(f"An address is text, not {address!r}.", hint="Use one such as 10.0.0.5:80.")
    return address.encode()


def _is_under(key: str, name: str) -> bool:
    return not name or key == name or key.startswith(name + "/")


class NamesCore:
    """The names as one client knows them, and its own; in the client's loop, except `found` and `choose`."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._opening = asyncio.Lock()
        self._own: dict[str, _Registration] = {}
        self._last: dict[str, str] = {}  # by what was asked for: the name that was chosen last
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._again: set[asyncio.Task[None]] = set()
        self.copy: TableCopy | None = None

    @property
    def core(self) -> Any:
        return self._client._core  # noqa: SLF001 - parts of one client

    async def open(self, deadline: Deadline) -> TableCopy:
        """The copy of the table; made, with the table itself, at first use, and again if somebody deleted that."""
        async with self._opening:
            copy = self.copy
            if copy is not None and copy.failure is None:
                return copy
            await self._client.create_topic(NAMES_TABLE, kind="table", partitions=1, exist_ok=True)
            copy = TableCopy(self.core, NAMES_TABLE)
            copy.watchers.append(self._see)
            await copy.open(deadline)
            self.core.leavers.add(self._leave)
            own, self._own = self._own, {}
            self.copy = copy
        for name, registration in own.items():
            lease = lease_of(copy, None, ephemeral=True, grace=registration.lease.seconds)
            await self._put(copy, name, registration.value, lease, deadline)
        return copy

    async def _leave(self) -> None:
        """The client closes: its names go with its session, and that is nobody's doing."""
        self._own.clear()
        for task in self._again:
            task.cancel()

    # --- own names ------------------------------------------------------------------------------

    async def register(
        self, name: str, address: str, ephemeral: bool, grace: float | None, timeout: float | None
    ) -> None:
        key, value, deadline = check_name(name), _check_address(address), self.core.deadline(timeout)
        copy = await self.open(deadline)
        await self._put(copy, key, value, lease_of(copy, None, ephemeral, grace), deadline)

    async def _put(self, copy: TableCopy, key: str, value: bytes, lease: NewLease | None, deadline: Deadline) -> None:
        if lease is None:
            self._own.pop(key, None)
        else:
            self._own[key] = _Registration(value, lease)  # before it is seen in the copy
        try:
            await copy.change({key: value}, {}, deadline, lease)
        except StentorError:
            self._own.pop(key, None)
            raise

    async def unregister(self, name: str, timeout: float | None) -> None:
        key, deadline = check_name(name), self.core.deadline(timeout)
        copy = await self.open(deadline)
        self._own.pop(key, None)
        await copy.change({key: None}, {}, deadline)

    def _see(self, changes: list[TableChange] | Overtaken | StentorError) -> None:
        if isinstance(changes, list):  # an error: the next call opens a new copy. Overtaken: what is left comes now
            for change in changes:
                self._see_one(change)

    def _see_one(self, change: TableChange) -> None:
        registration = self._own.get(change.key)
        if registration is not None:
            self._see_own(change, registration)
        waiting, self._waiting = self._waiting, []
        for name, found in waiting:
            if change.new is None or not _is_under(change.key, name):
                self._waiting.append((name, found))
            elif not found.done():
                found.set_result(None)

    def _see_own(self, change: TableChange, registration: _Registration) -> None:
        if change.expired:
            task = self.core.loop.create_task(self._register_again(change.key, registration))
            self._again.add(task)
            task.add_done_callback(self._again.discard)
        elif change.new is None or change.new.session != registration.lease.session:
            del self._own[change.key]
            logger.warning("another client has %s the name %s", "taken" if change.new else "removed", change.key)

    async def _register_again(self, key: str, registration: _Registration) -> None:
        """This client was not heard for too long; now it is back. A name that another has meanwhile stays there."""
        copy = self.copy
        while copy is not None and copy.failure is None and self._own.get(key) is registration:
            try:
                await copy.change(
                    {key: registration.value}, {key: ABSENT}, self.core.deadline(_AGAIN_S), registration.lease
                )
            except ConditionFailed:
                self._own.pop(key, None)
                logger.warning("another client has taken the name %s", key)
            except StentorError as error:
                logger.info("the name %s could not be registered again yet: %s", key, error)
                await asyncio.sleep(limits.PRODUCER_RESEND_S)
            else:
                logger.warning("the name %s had expired and is registered again", key)
                return

    # --- finding --------------------------------------------------------------------------------

    def found(self, name: str) -> dict[str, str]:
        """The names at and below a name, in their order, with their addresses; in any thread."""
        copy = self.copy
        assert copy is not None
        copy.check()
        with copy.lock:
            entries = list(copy.entries.values())
        return {
            entry.key: entry.value.decode(errors="replace")
            for entry in sorted(entries, key=lambda entry: entry.key)
            if _is_under(entry.key, name)
        }

    def choose(self, name: str) -> str | None:
        """The address of the next one in turn, from a start by chance, so that all clients together spread evenly."""
        found = self.found(name)
        if not found:
            return None
        names = list(found)
        last = self._last.get(name)
        index = random.SystemRandom().randrange(len(names)) if last is None else bisect_right(names, last) % len(names)
        self._last[name] = names[index]
        return found[names[index]]

    async def resolve(self, name: str, wait: float | None, timeout: float | None) -> str:
        """Looks in the copy; a name that is not there is asked for at the brokers, and waited for if that is wished."""
        deadline = self.core.deadline(timeout)
        copy = await self.open(deadline)
        found = self.choose(name)
        if found is None:
            await copy.catch_up(deadline)
            found = self.choose(name)
        if found is None and wait is not None:
            found = await self._wait(name, wait)
        if found is None:
            raise KeyNotFound(
                f"No service is registered as {name}.",
                hint="It may not have started yet: wait=seconds waits for it.",
                object=name,
            )
        return found

    async def _wait(self, name: str, seconds: float) -> str | None:
        deadline = self.core.deadline(seconds)
        while (found := self.choose(name)) is None:
            came: asyncio.Future[None] = self.core.loop.create_future()
            self._waiting.append((name, came))
            try:
                async with deadline.bound():
                    await came
            except TimeoutError:
                return None
        return found


def _shown(change: TableChange) -> NameChange:
    old = None if change.old is None else change.old.value.decode(errors="replace")
    new = None if change.new is None else change.new.value.decode(errors="replace")
    return NameChange(change.key, old, new, change.expired)


@explained("Names")
class Names:
    """Where services are: `client.names`. Names are paths such as billing/1; looking them up takes no network."""

    def __init__(self, client: Client, core: NamesCore) -> None:
        self._client = client
        self._core = core

    def _call(self, work: Any) -> Any:
        return self._client._call(work)  # noqa: SLF001 - two halves of one thing

    def register(
        self,
        name: str,
        address: str,
        ephemeral: bool = True,
        *,
        grace: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Say where a service is. A name that is registered already is replaced.

        The name is there until this client is closed, and `grace` seconds longer if it dies. A client that was cut off
        for longer registers it again when it is back.
        """
        self._call(self._core.register(name, address, ephemeral, grace, timeout))

    def unregister(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a name, also another client's."""
        self._call(self._core.unregister(name, timeout))

    def resolve(self, name: str, *, wait: float | None = None, timeout: float | None = None) -> str:
        """The address of a service: that of the name itself, or of one of the names below it, each in turn.

        KeyNotFound if there is none. Who finds that a service does not answer asks again, and gets the next one.
        """
        check_name(name)
        copy = self._core.copy
        found = self._core.choose(name) if copy is not None and copy.failure is None else None
        return found or str(self._call(self._core.resolve(name, wait, timeout)))

    def resolve_all(self, name: str = "", *, timeout: float | None = None) -> dict[str, str]:
        """All names at and below a name, with their addresses. Empty, it is all there are."""
        if name:
            check_name(name)
        self._call(self._core.open(self._core.core.deadline(timeout)))
        return self._core.found(name)

    def watch(self, name: str = "", *, timeout: float | None = None) -> NameWatch:
        """Changes of the names at and below a name, from now on. Empty, it is all there are."""
        if name:
            check_name(name)
        copy = self._call(self._core.open(self._core.core.deadline(timeout)))
        return NameWatch(Table(self._client, copy).watch(), name)


class NameWatch:
    """Changes of names as they come: iterate, or `get(timeout=...)`. Use as a context manager."""

    def __init__(self, watch: TableWatch, name: str) -> None:
        self._watch = watch
        self._name = name

    def get(self, timeout: float | None = None) -> NameChange:
        """The next change; DeadlineExceeded if none comes in time."""
        deadline = Deadline(timeout)
        while True:
            change = self._watch.get(deadline.left())
            if _is_under(change.key, self._name):
                return _shown(change)

    def __iter__(self) -> Iterator[NameChange]:
        while True:
            yield self.get()

    def close(self) -> None:
        """No more changes."""
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("Names", asynchronous=True)
class AsyncNames:
    """The same for `async` code."""

    def __init__(self, client: AsyncClient, core: NamesCore) -> None:
        self._client = client
        self._core = core

    async def register(
        self,
        name: str,
        address: str,
        ephemeral: bool = True,
        *,
        grace: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Say where a service is. A name that is registered already is replaced.

        The name is there until this client is closed, and `grace` seconds longer if it dies. A client that was cut off
        for longer registers it again when it is back.
        """
        await self._core.register(name, address, ephemeral, grace, timeout)

    async def unregister(self, name: str, *, timeout: float | None = None) -> None:
        """Remove a name, also another client's."""
        await self._core.unregister(name, timeout)

    async def resolve(self, name: str, *, wait: float | None = None, timeout: float | None = None) -> str:
        """The address of a service: that of the name itself, or of one of the names below it, each in turn.

        KeyNotFound if there is none. Who finds that a service does not answer asks again, and gets the next one.
        """
        return await self._core.resolve(check_name(name), wait, timeout)

    async def resolve_all(self, name: str = "", *, timeout: float | None = None) -> dict[str, str]:
        """All names at and below a name, with their addresses. Empty, it is all there are."""
        if name:
            check_name(name)
        await self._core.open(self._core.core.deadline(timeout))
        return self._core.found(name)

    def watch(self, name: str = "", *, timeout: float | None = None) -> Opening[AsyncNameWatch]:
        """Changes of the names at and below a name, from now on. Empty, it is all there are."""
        return Opening(self._watch(name, timeout))

    async def _watch(self, name: str, timeout: float | None) -> AsyncNameWatch:
        if name:
            check_name(name)
        copy = await self._core.open(self._core.core.deadline(timeout))
        return AsyncNameWatch(AsyncTable(self._client, copy).watch(), name)


class AsyncNameWatch:
    """The same for `async` code."""

    def __init__(self, watch: AsyncTableWatch, name: str) -> None:
        self._watch = watch
        self._name = name

    async def get(self, timeout: float | None = None) -> NameChange:
        """The next change; DeadlineExceeded if none comes in time."""
        deadline = Deadline(timeout)
        while True:
            change = await self._watch.get(deadline.left())
            if _is_under(change.key, self._name):
                return _shown(change)

    async def __aiter__(self) -> AsyncIterator[NameChange]:
        while True:
            yield await self.get()

    async def close(self) -> None:
        """No more changes."""
        await self._watch.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
