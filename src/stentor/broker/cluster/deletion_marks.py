"""Removes the marks of deleted topics from the coordination store, once no broker can need them.

A mark `deleted/<topic id>` says that a topic which is missing was deleted, and not lost (C27): a broker that was away
removes its copies of it, cursors and outputs of transactions are given up. Without an end to them, a client that
makes and deletes topics fills the store with keys that no compaction frees (E8). So

    every broker      says in `tidied/<id>` up to which revision it holds nothing of topics that were marked as deleted:
                      no files, no copies, no cursors, no outputs, nothing in what it knows of the store
    the controller    removes marks up to the lowest of these, where every registered broker has said one

A broker that is away says nothing, so the marks wait for it, or until an operator forgets it. Nothing of a topic comes
back once it is gone everywhere, because its id is not used again. Older brokers say nothing either: marks stay until
all are upgraded. Nobody speaks of marks younger than ten minutes: requests that were under way are over by then, and
what each broker remembers of the store has been saved.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.broker.catalogue import CONTROLLER, chain_key, deleted_key, tidied_key
from stentor.broker.cluster.topic_admin import delete_all
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stentor.broker.background import Background
    from stentor.broker.cluster.cluster import Cluster
    from stentor.broker.environment import BrokerIdentity
    from stentor.ports import Clock

logger = logging.getLogger(__name__)

MARKS_LOOK_S: Final = 60.0
"""How often each broker says up to where it is tidy, and the controller removes marks."""

MARK_AGE_S: Final = 600.0
"""Marks that a broker has known for less are not spoken of."""

REMOVED_MAX: Final = 10_000
"""How many marks are removed at a time: every broker hears of each."""


class DeletionMarks:
    """The part of one broker in it. Owned by the composition of a broker."""

    def __init__(
        self,
        clock: Clock,
        identity: BrokerIdentity,
        *,
        cluster: Cluster,
        held: Callable[[], Awaitable[set[int] | None]],
        background: Background,
    ) -> None:
        self._clock = clock
        self._identity = identity
        self._cluster = cluster
        followed = cluster.followed
        self._store, self._catalogue, self._rollback = followed.store, followed.catalogue, followed.rollback
        self._held = held  # topics of which this broker has something; None while it cannot tell
        self._background = background
        self._looking = False
        self._seen: deque[tuple[float, int]] = deque()  # when the newest mark was of which revision

    def look_soon(self) -> None:
        """Say and remove what is due; called by a timer."""
        if self._identity.alone or self._looking or not self._catalogue.deleted:
            return
        if self._rollback.noticed or not self._cluster.control.joined:
            return
        self._looking = True
        self._background.spawn(self._look())

    async def _look(self) -> None:
        try:
            await self._tell()
            await self._remove()
        except StentorError as error:
            logger.info("marks of deleted topics wait to be removed: %s", error)
        finally:
            self._looking = False

    async def _tell(self) -> None:
        me, old = self._identity.broker_id, self._old_revision()
        told = self._catalogue.tidied.get(me, 0)
        if self._cluster.disk.why_not() or not any(told < each <= old for each in self._catalogue.deleted.values()):
            return
        held = await self._held()
        if held is None:
            return
        tidied = told
        for topic_id, revision in sorted(self._catalogue.deleted.items(), key=lambda mark: mark[1]):
            if revision > old or topic_id in held or topic_id in self._catalogue.by_id:
                break
            tidied = max(tidied, revision)
        if tidied > told:
            await self._store.swap(expect={}, put={tidied_key(me): str(tidied).encode()})

    def _old_revision(self) -> int:
        """Return the newest revision up to which all marks have been known for long enough."""
        now = self._clock.monotonic()
        self._seen.append((now, max(self._catalogue.deleted.values(), default=0)))
        while len(self._seen) > 1 and now - self._seen[1][0] >= MARK_AGE_S:
            self._seen.popleft()
        at, revision = self._seen[0]
        return revision if now - at >= MARK_AGE_S else 0

    async def _remove(self) -> None:
        machine, catalogue = self._cluster.control.machine, self._catalogue
        if machine.controller is None:
            return
        upto = min((catalogue.tidied.get(broker, 0) for broker in catalogue.brokers), default=0)
        due = [topic_id for topic_id, revision in catalogue.deleted.items() if revision <= upto][:REMOVED_MAX]
        if not due:
            return
        gone = set(due)
        # Whoever deleted a topic may have died before it deleted the records of its chains.
        await delete_all(self._store, [chain_key(key) for key in catalogue.chains if key[0] in gone])
        size = limits.COORDINATION_SWAP_OPERATIONS_MAX
        for start in range(0, len(due), size):
            marks = tuple(deleted_key(topic_id) for topic_id in due[start : start + size])
            expect = {CONTROLLER: machine.office_revision}
            if not (await self._store.swap(expect=expect, put={}, delete=marks)).succeeded:
                return  # somebody else is the controller
        logger.info("%d marks of deleted topics were removed: no broker has anything of them", len(due))
