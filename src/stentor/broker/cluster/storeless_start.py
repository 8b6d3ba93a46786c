"""C27: a broker that starts while its coordination store is away. It waits, and serves reads up to its stored floors.

    start ── the store answers ─────────────────────────────────────────────► the ordinary start
      └── not for STORE_AWAY_S ─► what the store was last known to hold ─► bounded reads ──┘ (from the beginning)

It is no member of anything meanwhile: it takes no messages, changes nothing, talks to no other broker, and has no
live subscribers, because it would not notice that others have gone on without it. What it read from its disk for
this is closed again before the ordinary start, which so begins as if nothing had been.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from stentor import limits
from stentor.broker.catalogue import Catalogue, HeldTopic, News, TopicRecord
from stentor.core.controller import BrokerRecord, HeldRecord
from stentor.core.records import ChainRecord
from stentor.errors import Closed, CoordinationUnavailable, CorruptData, NotReady, StentorError, UnknownSwap
from stentor.storage.files import FileKind, atomic_write, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stentor.broker.broker import Broker
    from stentor.broker.partitions.partition import Partition

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ASK_AGAIN_S = 1.0
_TELL_AGAIN_S = 60.0


class Remembered(msgspec.Struct, frozen=True, array_like=True):
    """What the store was last known to hold, as far as readers need it."""

    cluster_id: str
    topics: list[tuple[TopicRecord, int]]
    chains: list[tuple[int, int, ChainRecord, int]]
    brokers: list[BrokerRecord]

    @classmethod
    def of(cls, cluster_id: str, catalogue: Catalogue) -> Remembered:
        return cls(
            cluster_id,
            [(topic.record, topic.revision) for topic in catalogue.topics.values()],
            [(*key, held.record, held.revision) for key, held in catalogue.chains.items()],
            list(catalogue.brokers.values()),
        )

    def catalogue(self) -> Catalogue:
        found, news = Catalogue(), News()
        for record, revision in self.topics:
            found.put_topic(HeldTopic(record, revision), news)
        for topic_id, partition, chain, revision in self.chains:
            found.put_chain((topic_id, partition), HeldRecord(chain, revision), news, confirmed=False)
        found.brokers = {broker.id: broker for broker in self.brokers}
        return found


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(Remembered)


def load_remembered(file: Path) -> Remembered:
    """What a broker wrote of the store; raises what is wrong with the file."""
    return _decoder.decode(unseal(FileKind.CATALOGUE, file.read_bytes(), what=str(file)))


class StorelessStart:
    """The wait for the store, and the memory of it that is written while all is well."""

    def __init__(self, broker: Broker, file: Path) -> None:
        self.serves = False  # reads, without a store
        self._broker = broker
        self._file = file
        self._noted_changes = 0
        self._noted: Remembered | None = None  # to be written
        self._told = ("", 0.0)

    # --- remembering ----------------------------------------------------------------------------

    def note(self) -> None:
        """In the loop: what is known now is to be written, if it is news."""
        catalogue = self._broker.catalogue
        if catalogue.changes != self._noted_changes:
            self._noted_changes = catalogue.changes
            self._noted = Remembered.of(self._broker.cluster_id, catalogue)

    def store(self) -> None:
        """In a thread: write it."""
        noted, self._noted = self._noted, None
        if noted is not None:
            atomic_write(self._file, seal(FileKind.CATALOGUE, msgspec.msgpack.encode(noted)))

    def _load(self) -> Remembered | None:
        """A memory that cannot be read is none: the store has the truth."""
        try:
            return load_remembered(self._file)
        except FileNotFoundError:
            return None
        except (OSError, CorruptData, msgspec.MsgspecError) as error:
            logger.warning("what the coordination store last held cannot be read from %s: %s", self._file, error)
            return None

    # --- waiting --------------------------------------------------------------------------------

    async def until_store_answers(self) -> None:
        """Serve readers, if it takes long."""
        deadline = self._broker.loop.time() + limits.STORE_AWAY_S
        while self._broker.loop.time() < deadline:
            if await self._store_answers():
                return
        remembered = self._load()
        if remembered is None:
            await self._wait()
            return
        try:
            await self._serve(remembered)
            await self._wait()
        finally:
            await self._end()

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store until it answers: once a broker has begun to start, a lost answer is no reason to end.

        Only what may be asked twice: reads, and swaps that look first at what is there.
        """
        while True:
            try:
                return await ask()
            except (CoordinationUnavailable, UnknownSwap) as error:
                if self._broker.replicas.single:
                    raise
                self._tell(str(error))
                await asyncio.sleep(_ASK_AGAIN_S)

    async def _wait(self) -> None:
        while not await self._store_answers():
            pass

    async def _store_answers(self) -> bool:
        try:
            await self._broker.store.range("identity/")
        except CoordinationUnavailable as error:
            self._tell(str(error))
            await asyncio.sleep(_ASK_AGAIN_S)
            return False
        return True

    def _tell(self, why: str) -> None:
        """The same thing is not said every second."""
        told, at = self._told
        now = self._broker.loop.time()
        if why != told or now - at > _TELL_AGAIN_S:
            self._told = (why, now)
            logger.warning("waiting for the coordination store: %s", why)

    async def _serve(self, remembered: Remembered) -> None:
        broker = self._broker
        broker.cluster_id = remembered.cluster_id
        broker.catalogue = remembered.catalogue()
        broker.cluster.confirmed = False  # C6: nobody hears this broker, it takes nothing
        await broker.replicas.open_all(broker.catalogue.topics.values(), {})
        self.serves = True
        await broker.listen()
        logger.warning(
            "the coordination store is away: reads of %d partitions are served on %s, up to what is known to be"
            " committed; all else waits",
            len(broker.partitions),
            broker.address,
        )

    async def _end(self) -> None:
        """Leave nothing behind: the ordinary start reads everything anew."""
        broker = self._broker
        self.serves = False
        broker.listeners.close()
        await broker.close_sessions()
        for partition in broker.partitions.values():
            partition.end_streams(Closed("The broker joins its cluster.", hint="Clients come back by themselves."))
            await broker.replicas.settle(partition)
            partition.log.close()
        broker.partitions.clear()
        broker.catalogue = Catalogue()
        broker.cluster.confirmed = True

    # --- refusals -------------------------------------------------------------------------------

    def check_stream(self, partition: Partition, start: int, end: int | None) -> None:
        """C25: only what is known to be committed, and nobody who would wait for more."""
        if self.serves and (end is None or max(start, end) > partition.committed):
            raise without_store(f"{partition.name} can be read up to {partition.committed}")


def without_store(what: str = "Committed messages can be read") -> StentorError:
    """C27: what a broker says that started without its store."""
    return NotReady(
        f"This broker started while its coordination store was away. {what}; all else waits for the store.",
        hint="Bring etcd back, or ask another broker.",
    )
