"""A CoordinationStore on etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.coordination.etcd import messages
from stentor.coordination.etcd.config import EtcdSettings, TlsFiles, parse_url
from stentor.coordination.etcd.gateway import Gateway, Refusal, refused
from stentor.coordination.etcd.keys import Keys
from stentor.coordination.etcd.watch import Counts, watch
from stentor.coordination.rules import check_key, check_swap, check_ttl
from stentor.errors import CoordinationUnavailable, LeaseExpired
from stentor.ports import Changed, CoordinationStatistics, Entry, Range, Resync, StoreRoom, Swap

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Collection, Mapping

    from stentor.coordination.etcd.messages import Answer

_NOT_FOUND: Final = 5  # gRPC's code; of leases only, for what we ask
_NO_SPACE: Final = "NOSPACE"  # etcd's alarm, among the errors of a member's status
_OUT_OF_RANGE: Final = 11  # gRPC's code for a revision that was compacted


def open_etcd(
    url: str,
    *,
    tls: TlsFiles | None = None,
    user: str = "",
    password: str = "",
    timeout_s: float = limits.COORDINATION_TIMEOUT_S,
) -> EtcdStore:
    """A store at `etcd://h1:2379,h2:2379/prefix`; connects when it is first asked something."""
    endpoints, prefix = parse_url(url)
    return EtcdStore(EtcdSettings(endpoints, prefix, tls, user, password, timeout_s))


class EtcdStore:
    """Every call has the deadline of the settings; see the port for what it may raise."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._gateway = Gateway(settings)
        self._keys = Keys(settings.prefix)
        self._watches = Counts()

    # --- reading --------------------------------------------------------------------------------

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        answer = await self._call(messages.RANGE, {"key": self._keys.full(key)}, messages.RangeAnswer)
        return self._keys.entry(answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: str) -> Range:
        for _ in range(limits.COORDINATION_PAGING_TRIES_MAX):
            try:
                return await self._pages(self._keys.full(prefix))
            except Refusal as refusal:
                if refusal.code != _OUT_OF_RANGE:
                    raise refused(refusal) from None
        raise CoordinationUnavailable("etcd's history is compacted faster than a range can be read.", object=prefix)

    async def _pages(self, begin: bytes) -> Range:
        """All pages at the revision of the first."""
        end, revision, entries = messages.end_of(begin), 0, list[Entry]()
        while True:
            request = {
                "key": begin,
                "range_end": end,
                "limit": str(limits.COORDINATION_PAGE_ENTRIES),
                "revision": str(revision),
            }
            answer = await self._gateway.call(messages.RANGE, request, messages.RangeAnswer)
            revision = revision or answer.header.revision
            entries += map(self._keys.entry, answer.kvs)
            if not answer.more or not answer.kvs:
                return Range(entries, revision)
            begin = answer.kvs[-1].key + b"\0"

    def watch(self, prefix: str, revision: int) -> AsyncGenerator[Changed | Resync, None]:
        return watch(self._gateway, self._keys, prefix, revision, self.range, self._watches)

    # --- changing -------------------------------------------------------------------------------

    async def swap(
        self, *, expect: Mapping[str, int], put: Mapping[str, bytes], delete: tuple[str, ...] = (), lease: int = 0
    ) -> Swap:
        check_swap(expect, put, delete)
        full = self._keys.full
        if not expect and not put and not delete:
            nothing = await self._call(messages.RANGE, {"key": full(""), "count_only": True}, messages.RangeAnswer)
            return Swap(succeeded=True, revision=nothing.header.revision)
        request = messages.txn(
            {full(key): revision for key, revision in expect.items()},
            {full(key): value for key, value in put.items()},
            tuple(full(key) for key in delete),
            lease,
        )
        answer = await self._call(messages.TXN, request, messages.TxnAnswer, once=True, lease=lease)
        return Swap(succeeded=answer.succeeded, revision=answer.header.revision)

    # --- room -----------------------------------------------------------------------------------

    @property
    def has_quota(self) -> bool:
        """Whether it can be full: yes."""
        return True

    async def room(self) -> StoreRoom:
        found = await self._gateway.ask_each(messages.STATUS, {}, messages.StatusAnswer)
        return StoreRoom(
            revision=min(each.header.revision for each in found),
            bytes=max(each.size for each in found),
            bytes_in_use=max(each.in_use or each.size for each in found),
            quota=min((each.quota for each in found if each.quota), default=0),
            alarm=any(_NO_SPACE in error for each in found for error in each.errors),
        )

    async def is_shared(self, kinds: Collection[str]) -> bool:
        everything = {"key": b"\0", "range_end": b"\0", "count_only": True}
        try:
            found = await self._gateway.call(messages.RANGE, everything, messages.RangeAnswer)
            # Not all below our prefix is ours: below the default one another cluster may have its own.
            mine = [await self._count(kind, found.header.revision) for kind in kinds]
        except Refusal:  # whoever may not see other keys is not alone
            return True
        return found.count != sum(mine)

    async def _count(self, kind: str, revision: int) -> int:
        begin = self._keys.full(kind)
        request = {"key": begin, "count_only": True, "revision": str(revision)}
        if kind.endswith("/"):
            request["range_end"] = messages.end_of(begin)
        return (await self._gateway.call(messages.RANGE, request, messages.RangeAnswer)).count

    async def compact(self, revision: int) -> None:
        try:
            await self._gateway.call(messages.COMPACT, {"revision": str(revision)}, messages.Acknowledged)
        except Refusal as refusal:
            if refusal.code != _OUT_OF_RANGE:  # else somebody else has done it
                raise refused(refusal) from None

    # --- leases ---------------------------------------------------------------------------------

    async def lease(self, ttl_s: int) -> int:
        check_ttl(ttl_s)
        # One that was granted without our hearing of it runs out by itself.
        answer = await self._call(messages.LEASE_GRANT, {"TTL": str(ttl_s)}, messages.Lease)
        return answer.ID

    async def keep_alive(self, lease: int) -> float:
        answer = await self._call(messages.LEASE_KEEP_ALIVE, {"ID": str(lease)}, messages.KeepAliveAnswer, lease=lease)
        if answer.result.TTL <= 0:
            raise _expired(lease)
        return float(answer.result.TTL)

    async def revoke(self, lease: int) -> None:
        try:
            await self._call(messages.LEASE_REVOKE, {"ID": str(lease)}, messages.Acknowledged, lease=lease)
        except LeaseExpired:
            return

    async def _call(
        self, path: str, request: Mapping[str, Any], kind: type[Answer], *, once: bool = False, lease: int = 0
    ) -> Answer:
        try:
            return await self._gateway.call(path, request, kind, once=once)
        except Refusal as refusal:
            if lease and refusal.code == _NOT_FOUND:
                raise _expired(lease) from None
            raise refused(refusal) from None

    # --- life -----------------------------------------------------------------------------------

    def statistics(self) -> CoordinationStatistics:
        return CoordinationStatistics(
            kind="etcd",
            endpoint=self._gateway.endpoint,
            available=self._gateway.available,
            requests=self._gateway.requests,
            failures=self._gateway.failures,
            watches=self._watches.open,
            reconnects=self._watches.reconnects,
            resyncs=self._watches.resyncs,
        )

    async def close(self) -> None:
        await self._gateway.close()


def _expired(lease: int) -> LeaseExpired:
    return LeaseExpired(f"Lease {lease:x} has expired.", hint="Take a new one, and put its keys again.")
