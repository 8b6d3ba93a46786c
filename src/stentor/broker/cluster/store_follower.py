"""What the coordination store says reaches the catalogue, and whoever must act on it, in one way only.

    watch, look_again, a proven peer's word ──► catalogue ──► News ──► everybody who listens

A store that went back to an older state is not followed (`store_rollback`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.broker.catalogue import News, chains_prefix, decode_topic, topic_key
from stentor.ports import Changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.cluster.store_rollback import StoreRollback
    from stentor.core.records import HeldRecord, Key
    from stentor.ports import CoordinationStore, Entry, Range


class FollowedStore(msgspec.Struct, frozen=True):
    """The coordination store as this broker follows it: who changes something there needs most of these."""

    store: CoordinationStore  # where changes are swapped in
    catalogue: Catalogue  # what it said last
    rollback: StoreRollback  # whether it went back, and must not be followed
    follower: StoreFollower  # reads it again, and tells everybody


class StoreFollower:
    """Keeps the catalogue in step with the store."""

    def __init__(self, store: CoordinationStore, catalogue: Catalogue, rollback: StoreRollback) -> None:
        self._store = store
        self._catalogue = catalogue
        self._rollback = rollback
        self._told = 0  # the catalogue has everything up to this revision
        self.on_news: list[Callable[[News], None]] = []  # in this order
        self.on_read: list[Callable[[], None]] = []  # the store itself has said something
        self.on_liveness: list[Callable[[str, bool], None]] = []  # a broker's liveness key came or went (E1)

    async def learn(self) -> int:
        """Read everything, before anybody acts on it; returns the revision from which to watch."""
        found = await self._store.range("")
        self._replace(found, News())
        return found.revision

    async def learn_as_news(self) -> None:
        """Read everything once more, and have everybody act on all of it: this broker joins."""
        found = await self._store.range("")
        news = News(brokers=True, chains=dict(self._catalogue.chains))
        self._replace(found, news)
        self.tell(news)

    async def watch(self, revision: int) -> None:
        """Follow every change, for as long as the broker runs."""
        async for event in self._store.watch("", revision):
            if not self._rollback.follows(revision, event.revision):
                continue
            revision, news = event.revision, News()
            if isinstance(event, Changed):
                for entry in event.put:
                    self._catalogue.put(entry, news)
                    self._note_liveness(entry.key, alive=True)
                for key in event.deleted:
                    self._catalogue.delete(key, event.revision, news)
                    self._note_liveness(key, alive=False)
            else:
                self._catalogue.replace(event.entries, event.revision, news)
                self._note_all_liveness(event.entries)
            self._told = max(self._told, revision)
            self.tell_read(news)

    async def look_again(self) -> None:
        """Read everything from the store."""
        before = self._rollback.revision
        found = await self._store.range("")
        if not self._rollback.follows(before, found.revision):
            return
        news = News()
        is_news = self._replace(found, news)
        self.tell_read(news)
        if is_news:
            self._note_all_liveness(found.entries)

    async def learn_topic(self, name: str) -> bool:
        """Read one topic, and not everything: it was made or changed a moment ago. Whether the store has it."""
        before = self._rollback.revision
        topic = await self._store.get(topic_key(name))
        if topic is None:
            return False
        topic_id = decode_topic(topic.value).id
        chains = await self._store.range(chains_prefix(topic_id))
        gone = topic_id in self._catalogue.deleted  # as the watch has told meanwhile
        if gone or not self._rollback.follows(before, chains.revision):
            return False
        self.put_read((topic, *chains.entries), News())
        return True

    def _replace(self, found: Range, news: News) -> bool:
        """Everything that was there at a revision; whether the watch has not been further before the answer came.

        If it has, all of this is known already, and some of it has changed since.
        """
        if found.revision < self._told:
            return False
        self._told = found.revision
        self._catalogue.replace(found.entries, found.revision, news)
        return True

    def put_read(self, entries: Iterable[Entry], news: News) -> None:
        """Some keys were read from the store."""
        for entry in entries:
            self._catalogue.put(entry, news)
        self.tell_read(news)

    def heard(self, records: Mapping[Key, HeldRecord], *, confirmed: bool) -> None:
        """Records that this broker swapped in (`confirmed`), or that a peer has told (C28)."""
        news = News()
        for key, held in records.items():
            self._catalogue.put_chain(key, held, news, confirmed=confirmed)
        self.tell(news)

    def tell(self, news: News) -> None:
        """What changed goes to whom it concerns."""
        for listener in self.on_news:
            listener(news)

    def tell_read(self, news: News) -> None:
        """The same, and the store itself has said it."""
        self.tell(news)
        for listener in self.on_read:
            listener()

    def _note_liveness(self, key: str, *, alive: bool) -> None:
        kind, _, name = key.partition("/")
        if kind == "live":
            for listener in self.on_liveness:
                listener(name, alive)

    def _note_all_liveness(self, entries: Iterable[Entry]) -> None:
        """Liveness keys that went while nobody watched."""
        live = {entry.key.removeprefix("live/") for entry in entries if entry.key.startswith("live/")}
        for name in self._catalogue.brokers:
            for listener in self.on_liveness:
                listener(name, name in live)
