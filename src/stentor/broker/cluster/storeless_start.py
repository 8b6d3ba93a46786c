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
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from stentor import limits
from stentor.broker.catalogue import HeldTopic, News, TopicRecord
from stentor.core.controller import BrokerRecord
from stentor.core.records import ChainRecord, HeldRecord
from stentor.errors import CoordinationUnavailable, CorruptData, UnknownSwap
from stentor.storage.files import FileKind, atomic_write, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.core.standing import Standing
    from stentor.ports import CoordinationStore

logger = logging.getLogger(__name__)

T = TypeVar("T")


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

    def fill(self, found: Catalogue) -> None:
        """Make a catalogue of it."""
        news = News()
        for record, revision in self.topics:
            found.put_topic(HeldTopic(record, revision), news)
        for topic_id, partition, chain, revision in self.chains:
            found.put_chain((topic_id, partition), HeldRecord(chain, revision), news, confirmed=False)
        found.brokers.update({broker.id: broker for broker in self.brokers})


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(Remembered)


def load_remembered(file: Path) -> Remembered:
    """What a broker wrote of the store; raises what is wrong with the file."""
    return _decoder.decode(unseal(FileKind.CATALOGUE, file.read_bytes(), what=str(file)))


class Doors(Protocol):
    """What is opened for readers meanwhile, and closed again before the ordinary start."""

    async def open(self) -> str:
        """Recover the logs and let clients in; what to say about it."""
        ...

    async def close(self) -> None: ...


class StorelessStart:
    """The wait for the store, and the memory of it that is written while all is well."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        standing: Standing,
        *,
        store: CoordinationStore,
        catalogue: Catalogue,
        file: Path,
    ) -> None:
        self._loop = environment.loop
        self._identity = identity
        self._standing = standing
        self._store = store
        self._catalogue = catalogue
        self._file = file
        self._noted_changes = 0
        self._noted: Remembered | None = None  # to be written
        self._told = ("", 0.0)

    # --- remembering ----------------------------------------------------------------------------

    def note(self) -> None:
        """In the loop: what is known now is to be written, if it is news."""
        if self._catalogue.changes != self._noted_changes:
            self._noted_changes = self._catalogue.changes
            self._noted = Remembered.of(self._identity.cluster_id, self._catalogue)

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
            logger.warning("cannot read from %s what the coordination store last held: %s", self._file, error)
            return None

    # --- waiting --------------------------------------------------------------------------------

    async def until_store_answers(self, doors: Doors) -> None:
        """Return when the store answers; meanwhile, if that takes long, serve reads."""
        deadline = self._loop.time() + limits.STORE_AWAY_S
        while self._loop.time() < deadline:
            if await self._store_answers():
                return
        remembered = self._load()
        if remembered is None:
            await self._wait()
            return
        try:
            await self._serve(remembered, doors)
            await self._wait()
        finally:
            await self._end(doors)

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the store until it answers: once a broker has begun to start, a lost answer is no reason to end.

        Only what may be asked twice: reads, and swaps that look first at what is there.
        """
        while True:
            try:
                return await ask()
            except (CoordinationUnavailable, UnknownSwap) as error:
                if self._identity.alone:
                    raise
                self._tell(str(error))
                await asyncio.sleep(limits.STORE_AGAIN_S)

    async def _wait(self) -> None:
        while not await self._store_answers():
            pass

    async def _store_answers(self) -> bool:
        try:
            await self._store.range("identity/")
        except CoordinationUnavailable as error:
            self._tell(str(error))
            await asyncio.sleep(limits.STORE_AGAIN_S)
            return False
        return True

    def _tell(self, why: str) -> None:
        """The same thing is not said every second."""
        told, at = self._told
        now = self._loop.time()
        if why != told or now - at > limits.STORE_TOLD_S:
            self._told = (why, now)
            logger.warning("waiting for the coordination store: %s", why)

    async def _serve(self, remembered: Remembered, doors: Doors) -> None:
        self._identity.cluster_id = remembered.cluster_id
        remembered.fill(self._catalogue)
        self._standing.confirmed, self._standing.storeless = False, True  # C6: nobody hears this broker
        logger.warning(
            "the coordination store is away: %s, up to what is known to be committed; all else waits",
            await doors.open(),
        )

    async def _end(self, doors: Doors) -> None:
        """Leave nothing behind: the ordinary start reads everything anew."""
        await doors.close()
        self._catalogue.forget()
        self._standing.confirmed, self._standing.storeless = True, False
