"""Which partitions clients find here, and whether their readers are served (`core.decisions` decides)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from stentor.broker.partitions.expiring import Expiring
from stentor.broker.partitions.read_end import find_end
from stentor.core import decisions, refusals
from stentor.errors import NotReady, PartitionNotFound, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.core.standing import Standing
    from stentor.ports import CoordinationStore
    from stentor.wire.messages import OpenStream


class PeerViews(Protocol):
    """How this broker sees the others."""

    def view(self, name: str) -> str: ...


class Serving:
    """The partitions of this broker, as clients may use them."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        standing: Standing,
        *,
        catalogue: Catalogue,
        store: CoordinationStore,
        partitions: Mapping[Key, Partition],
        views: PeerViews,
        knows_expiry: Callable[[], bool],
        knows_holders: Callable[[], bool],
    ) -> None:
        self._identity = identity
        self._standing = standing
        self._catalogue = catalogue
        self._store = store
        self._partitions = partitions
        self._views = views
        self._knows_expiry = knows_expiry
        self._knows_holders = knows_holders
        self.expiring = Expiring(environment, catalogue, partitions, partial(self.find_end, stale=False))

    def partition(self, topic_id: int, index: int) -> Partition:
        """The partition that a frame names."""
        found = self._partitions.get((topic_id, index))
        if found is None or found.deleted:
            raise self._elsewhere(topic_id, index)
        return found

    def _elsewhere(self, topic_id: int, index: int) -> StentorError:
        """Why a partition that a frame names is not here."""
        held = self._catalogue.chains.get((topic_id, index))
        topic = self._catalogue.by_id.get(topic_id)
        if held is not None and topic is not None:
            return refusals.elsewhere(f"{topic.record.name}/{index}", held.record, held.revision)
        if self._standing.storeless:
            return refusals.without_store()  # the store may know it
        return PartitionNotFound(
            f"This broker has no partition {index} of the topic with id {topic_id:x}.",
            hint="The topic may have been deleted or made anew; look it up again.",
        )

    def holder(self, shown: bytes) -> bytes | None:
        """What a caller has shown, if all brokers pass on what their callers show; else it says nothing (C27, C36)."""
        return shown if self._knows_holders() else None

    def check_timed(self, topic: str) -> None:
        """Whether keys may expire here: some other broker might keep them for ever (C27)."""
        if not self._knows_expiry():
            raise NotReady(
                f"The cluster is being upgraded; keys of table {topic} can expire once every broker knows how.",
                hint="Upgrade all brokers, then try again.",
                object=topic,
            )

    def check_reader(self, partition: Partition) -> int:
        """Up to where readers are served here; the reason why they are not is raised."""
        predecessor = partition.replica.position.predecessor
        held = self._catalogue.chains.get(partition.key)
        of = decisions.Readership(
            partition.name,
            alone=self._identity.alone,
            head_only=partition.settings.placement == "active-passive",
            stored=held,
            predecessor_heard=predecessor is None
            or self._standing.storeless
            or self._views.view(predecessor.broker) == "heard",
        )
        return decisions.may_read(partition.replica, of)

    def check_stream(self, wish: OpenStream) -> Partition:
        """The partition that a stream may be opened on."""
        partition = self.partition(wish.topic_id, wish.partition)
        self.check_reader(partition)
        decisions.check_stream(
            partition.replica,
            partition.name,
            partition.log.start,
            start=wish.start,
            end=wish.end,
            seen=wish.seen,
        )
        if wish.copies:
            partition.compaction.check_copy(wish.start, wish.end)
        return partition

    async def find_end(self, partition: Partition, *, stale: bool) -> tuple[int, bool]:
        """Where the committed messages end, and whether that is certain (C30)."""
        return await find_end(partition, alone=self._identity.alone, stale=stale, store=self._store)

    def refuse_all(self) -> StentorError | None:
        """Why a broker that nobody hears takes nothing and serves nobody; None when it is heard."""
        if self._standing.confirmed:
            return None
        return refusals.without_store() if self._standing.storeless else refusals.cut_off()
