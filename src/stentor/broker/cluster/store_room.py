"""Keeps room in the coordination store for changes of chains, whatever clients write into it (E8).

etcd keeps what every key ever was until somebody compacts its history, and takes no change at all once its database
has reached a quota: then no topic can be made, and no head that dies is replaced. So

- the controller compacts what is older than ten minutes, where the etcd is this cluster's alone;
- every broker refuses what clients cause (topics made and altered, schemas, brokers drained) while more than half
  of the quota is in use. Changes of chains, leases of brokers and deletions go on, in the other half;
- then only a minute of history is kept: whoever follows the store and is further behind reads all of it again.

What is compacted is free for other changes, but the file does not shrink: only an operator can defragment a member,
because it answers nobody meanwhile. `stentor doctor` says when.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stentor.broker.catalogue import KEY_KINDS
from stentor.errors import StentorError, StoreFull
from stentor.limits import MIB
from stentor.wire.statistics import Problem, StoreRoomStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.background import Background
    from stentor.broker.environment import Environment
    from stentor.ports import CoordinationStore, StoreRoom

logger = logging.getLogger(__name__)

QUOTA_BYTES: Final = 2_048 * MIB
"""etcd's own default, for versions before 3.6, which do not say theirs."""

HISTORY_S: Final = 600.0
"""How much history is kept: a broker that was away for longer reads everything anew, in a second or two."""

HISTORY_FULL_S: Final = 60.0
"""How much is kept while clients are refused: room for them comes before a cheaper return of those who were away."""

ROOM_LOOK_S: Final = 30.0
"""How often a broker looks how full the store is, and the controller compacts."""

COUNTED_S: Final = 0.5
"""etcd gathers changes for a tenth of a second before it writes them, and counts its free pages then."""

ROOM_FRESH_S: Final = 5.0
"""What clients cause is decided on a look that is no older than this."""

ROOM_SHARE: Final = 64
"""And one look is enough for this share of the quota at most: many brokers may write at the same time."""

CLIENTS_SHARE: Final = 1 / 2
"""Of the quota that may be in use before clients are refused."""

AGAIN_SHARE: Final = 7 / 8
"""Of either bound, below which clients are taken again: what is in use goes up and down by some pages."""

FILE_SHARE: Final = 9 / 10
"""Of the quota that the file may take before they are: etcd compares the file, with all that is free in it."""

DEFRAGMENT_SHARE: Final = 3 / 4
"""Of the quota that the file takes when doctor says that it should be defragmented."""

_LEASE_S: Final = 5  # of a lease that is revoked at once
_SAMPLES_MAX: Final = int(2 * HISTORY_S / ROOM_LOOK_S)  # twice as far back as is looked
_ALARM_HINT: Final = (
    "Compact etcd's history, defragment every member, then clear the alarm: etcdctl compact REVISION;"
    " etcdctl defrag --cluster; etcdctl alarm disarm. See docs/cluster.md."
)


class StoreKeeper:
    """Watches how full the coordination store is. Owned by the cluster part of a broker."""

    def __init__(
        self,
        environment: Environment,
        store: CoordinationStore,
        background: Background,
        is_controller: Callable[[], bool],
    ) -> None:
        config = environment.config
        self._clock = environment.clock
        self._store = store
        self._background = background
        self._is_controller = is_controller
        self._compaction = config.coordination_compaction
        self._quota = config.coordination_quota_bytes
        self._room: StoreRoom | None = None
        self._looked_at = 0.0
        self._put = 0  # bytes that this broker wrote for clients since it looked
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)  # when the store had which revision
        self._looking = False
        self.is_full = False  # clients are refused
        self._is_shared: bool | None = None  # with others, as it was seen last
        self._refused_by = ""  # what etcd says against compacting, as it was logged
        self.compacted_to = 0
        self.refused = 0

    # --- what clients cause ---------------------------------------------------------------------

    async def check(self, size: int, what: str) -> None:
        """Raise StoreFull if the store has no room for a change that a client causes."""
        if not self._store.has_quota:
            return
        self._put += size
        fresh = self._room is not None and self._clock.monotonic() - self._looked_at < ROOM_FRESH_S
        if not fresh or self._put * ROOM_SHARE > self.quota:
            with suppress(StentorError):  # the change itself says that the store does not answer
                await self._look()
        room = self._room
        if room is None or not self.is_full:
            return
        self.refused += 1
        raise StoreFull(
            f"The coordination store has no room for changes by clients: {room.bytes_in_use:,} of {self.quota:,} bytes"
            " are in use. The rest is kept for changes of chains.",
            hint="Try again in some minutes, when its history is compacted. If this lasts, run stentor doctor.",
            object=what,
        )

    @property
    def quota(self) -> int:
        """The size at which the store takes no more changes."""
        told = 0 if self._room is None else self._room.quota
        return self._quota or told or QUOTA_BYTES

    def _judge(self, room: StoreRoom) -> bool:
        """Whether clients are refused from now on."""
        share = AGAIN_SHARE if self.is_full else 1.0
        in_use, file = share * CLIENTS_SHARE * self.quota, share * FILE_SHARE * self.quota
        return room.alarm or room.bytes_in_use >= in_use or room.bytes >= file

    # --- looking and compacting -----------------------------------------------------------------

    def look_soon(self) -> None:
        """Look how full the store is, and compact it; called by a timer."""
        if self._store.has_quota and not self._looking:
            self._looking = True
            self._background.spawn(self._care())

    async def _care(self) -> None:
        try:
            await self._look()
            controls = self._is_controller()
            if self._compaction == "auto" and (controls or self.is_full):
                self._is_shared = await self._store.is_shared(KEY_KINDS)
            if controls:
                await self._compact()
                if self.is_full:
                    await self._have_it_counted()
                    await self._look()
        except StentorError as error:
            logger.debug("the room in the coordination store is not known: %s", error)
        finally:
            self._looking = False

    async def _look(self) -> None:
        was_full = self.is_full
        self._room, self._put = await self._store.room(), 0
        self.is_full = self._judge(self._room)
        self._looked_at = self._clock.monotonic()
        if not self._samples or self._looked_at - self._samples[-1][0] >= ROOM_LOOK_S / 2:
            self._samples.append((self._looked_at, self._room.revision))
        if self.is_full != was_full:
            if was_full:
                logger.info("the coordination store has room for changes by clients again")
            else:
                logger.error("%s", self.problems()[0].message)

    async def _compact(self) -> None:
        revision = self._old_revision()
        if revision <= self.compacted_to or not self._may_compact:
            return
        try:
            await self._store.compact(revision)
        except StentorError as error:
            if str(error) != self._refused_by:
                self._refused_by = str(error)
                logger.warning("the history of the coordination store cannot be compacted: %s", error)
            return
        self.compacted_to, self._refused_by = revision, ""

    @property
    def _may_compact(self) -> bool:
        """Whether a controller with this setting would compact."""
        return self._compaction == "on" or (self._compaction == "auto" and not self._is_shared)

    async def _have_it_counted(self) -> None:
        """Make etcd count what a compaction has freed: it does so with later changes, and clients make none now."""
        with suppress(StentorError):  # an alarm refuses leases, too
            for _ in range(2):
                await asyncio.sleep(COUNTED_S)
                await self._store.revoke(await self._store.lease(_LEASE_S))
            await asyncio.sleep(COUNTED_S)

    def _old_revision(self) -> int:
        """The newest revision that is known to be older than what is kept."""
        kept_s = HISTORY_FULL_S if self.is_full else HISTORY_S
        now = self._clock.monotonic()
        return max((revision for at, revision in self._samples if now - at >= kept_s), default=0)

    # --- what others see ------------------------------------------------------------------------

    def problems(self) -> list[Problem]:
        """What an operator should know of the store's room, and do."""
        room, quota = self._room, self.quota
        if room is None:
            return []
        of_quota = f"{room.bytes_in_use:,} bytes in use, {room.bytes:,} on disk, quota {quota:,}"
        if room.alarm:
            message = f"etcd takes no changes since it was full ({of_quota}): no topic is made, and no head taken over."
            return [Problem("error", "coordination store", message, _ALARM_HINT)]
        if room.bytes >= FILE_SHARE * quota or (not self.is_full and room.bytes >= DEFRAGMENT_SHARE * quota):
            message = f"etcd's file is nearly as large as its quota ({of_quota})."
            hint = "Defragment one member after the other: etcdctl defrag --endpoints=MEMBER. See docs/cluster.md."
            return [Problem("error" if self.is_full else "warning", "coordination store", message, hint)]
        if self.is_full:
            message = f"etcd is half full, and changes by clients are refused ({of_quota})."
            return [Problem("error", "coordination store", message, self._hint())]
        return []

    def _hint(self) -> str:
        if self._refused_by:
            return f"Its history cannot be compacted: {self._refused_by}"
        if self._may_compact:
            return "The controller compacts its history. If this lasts, delete topics, or raise its quota and ours."
        if self._compaction == "off":
            why = "No broker compacts its history (coordination_compaction=off)"
        else:
            why = "Others use this etcd, too, so brokers do not compact its history"
        return f"{why}: set coordination_compaction=on, or etcd's --auto-compaction-retention."

    def statistics(self) -> StoreRoomStatistics:
        """The store's room in numbers."""
        room = self._room
        if room is None:
            return StoreRoomStatistics()
        return StoreRoomStatistics(
            bytes=room.bytes,
            bytes_in_use=room.bytes_in_use,
            bytes_max=self.quota,
            alarm=room.alarm,
            refused=self.refused,
            compacted_to=self.compacted_to,
        )
