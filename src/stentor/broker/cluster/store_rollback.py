"""C27: the coordination store was restored from an older state. That is told, and never followed.

Three ways to notice it:

    while this broker runs   the store's revision goes back: from then on nothing that it says is believed, chains go on
    when it starts           the store's revision is behind the journal's: it does not start, unless an operator says so
    after that               members of chains are further than the store's records: those chains are left as they are

An operator decides which copy leads (docs/cluster.md, "Backup and restore").
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stentor.errors import CoordinationRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stentor.broker.catalogue import HeldTopic
    from stentor.core.controller import Controller
    from stentor.storage.journal import ReplicaJournal

logger = logging.getLogger(__name__)


class StoreRollback:
    """What this broker has noticed of it."""

    def __init__(self) -> None:
        self.noticed = False
        self.accepted = False  # an operator says that an older store is the store now
        self.revision = 0  # the highest that the store is known to have had
        self._told: set[object] = set()

    def follows(self, before: int, revision: int) -> bool:
        """The store was at `before` and is at `revision` now: whether what it says may be believed."""
        if revision < before and not self.noticed:
            self.noticed = True
            logger.critical(
                "the coordination store was restored from an older backup (revision %d is now %d): messages flow on,"
                " but this broker follows no change of it",
                before,
                revision,
            )
        self.revision = max(self.revision, revision)
        return not self.noticed

    def check_start(self, journal: ReplicaJournal, revision: int, *, accept: bool) -> None:
        """The store as it is when this broker starts, against what its last life has seen."""
        seen = journal.store_revision
        if revision < seen and not accept:
            raise CoordinationRefused(
                f"The coordination store is at revision {revision}; this broker has seen it at {seen}. It was restored"
                " from an older state, or is another one.",
                hint="Is `coordination` right? If it was restored, start all brokers with --accept-older-store;"
                " docs/cluster.md, 'Backup and restore', says what comes then.",
            )
        if revision < seen:
            self.accepted = True
            logger.warning(
                "the coordination store is at revision %d, it was at %d: accepted, as --accept-older-store says",
                revision,
                seen,
            )
            journal.accept_revision(revision)
        self.revision = revision

    def check(self) -> None:
        """Nothing can be changed in a store that is not followed."""
        if self.noticed:
            raise CoordinationRefused(
                "The coordination store was restored from an older state, and this broker does not follow it.",
                hint="Messages flow on. To change something, stop all brokers and start them with"
                " --accept-older-store; docs/cluster.md, 'Backup and restore', says what comes then.",
            )

    def tell_behind(self, controller: Controller | None, topics: Mapping[int, HeldTopic]) -> None:
        """Partitions whose members are further than the store, as the controller sees it; each is told once."""
        if controller is None:
            return
        if (unheard := ", ".join(controller.unheard)) and unheard not in self._told:
            self._told.add(unheard)
            logger.warning("waiting for brokers %s to report their logs before changing any chain", unheard)
        for key in controller.behind - self._told:
            self._told.add(key)
            if key[0] in topics:
                logger.critical(
                    "%s/%d: the coordination store has an older chain than its members: waiting for an operator",
                    topics[key[0]].record.name,
                    key[1],
                )

    def tell_vanished(self, topics: Iterable[str]) -> None:
        """Topics that are not in the store although nobody deleted them; each is told once."""
        for name in topics:
            if name not in self._told:
                self._told.add(name)
                logger.critical(
                    "topic %s is missing from the coordination store although nobody deleted it: its logs are kept",
                    name,
                )
