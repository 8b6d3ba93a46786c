"""The choice of the coordination store, and what follows from it for the start of a broker and for deleted topics.

A broker on its own is a cluster of one with a store in its data directory. Nobody else changes that store, so there is
no older or restored one to fear, no secret to learn and no other broker that may come back with copies.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from stentor.broker.catalogue import deleted_key
from stentor.broker.cluster.topic_admin import delete_all
from stentor.coordination import EmbeddedStore
from stentor.errors import CorruptData
from stentor.storage.changes import ChangesFile
from stentor.storage.directory import BROKER_FILE, CHANGES_FILE, COORDINATION_FILE, SECRET_FILE
from stentor.storage.files import atomic_write
from stentor.storage.identity import settle_broker_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stentor.broker.cluster.storeless_start import Doors
    from stentor.broker.composition import Parts
    from stentor.broker.config import BrokerConfig
    from stentor.core.records import Key, Member
    from stentor.ports import CoordinationStore
    from stentor.storage.journal import ReplicaJournal

logger = logging.getLogger(__name__)

_IDENTITY: Final = "identity/broker"


class StoreChoice(Protocol):
    """What a broker does as its store has it."""

    alone: bool  # there are no other brokers, and never will be

    def open(self, path: Path, journal: ReplicaJournal) -> CoordinationStore: ...

    async def settle_id(self, path: Path, store: CoordinationStore) -> str:
        """Who this broker is: told by the config, or made once and kept."""
        ...

    async def learn(self, parts: Parts, path: Path, doors: Doors) -> int:
        """What the store knows of this cluster, and as of which revision."""
        ...

    def outlived(self, parts: Parts) -> None:
        """The store remembers a later life of this broker than its disk does (C3)."""
        ...

    def named_logs(self, parts: Parts) -> dict[Key, Member]:
        """Logs that are this broker's because the store says so, although its journal does not know them."""
        ...

    async def joined(self, parts: Parts) -> None:
        """This broker takes part in its cluster."""
        ...

    async def remove_deleted(self, parts: Parts) -> None:
        """A crash may have come between deleting a topic and removing its files."""
        ...

    async def after_delete(self, parts: Parts) -> None:
        """A topic was deleted by this broker."""
        ...


class OwnStore:
    """A file in the data directory."""

    alone = True

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    def open(self, path: Path, journal: ReplicaJournal) -> CoordinationStore:
        file = path / COORDINATION_FILE
        saved = file.read_bytes() if file.exists() else None
        if saved is None and journal.replicas():
            raise CorruptData(
                f"The file {file} is missing, although there are logs.",
                hint="Restore it from a backup: it says which topics the logs belong to.",
                object=str(file),
            )
        return EmbeddedStore(saved, partial(atomic_write, file), changes=ChangesFile(path / CHANGES_FILE))

    async def settle_id(self, path: Path, store: CoordinationStore) -> str:  # noqa: ARG002 - the store has it
        found = await store.get(_IDENTITY)
        broker_id = self._config.broker_id or (_new_id() if found is None else found.value.decode())
        if found is None or found.value.decode() != broker_id:
            await store.swap(expect={}, put={_IDENTITY: broker_id.encode()})
        return broker_id

    async def learn(self, parts: Parts, path: Path, doors: Doors) -> int:  # noqa: ARG002 - the store is here already
        return await _read_store(parts)

    def outlived(self, parts: Parts) -> None:
        """Nobody else has anything newer: what is here is all there is."""

    def named_logs(self, parts: Parts) -> dict[Key, Member]:
        """All of them, also under a name that this broker had before."""
        chains = parts.ground.catalogue.chains
        return {key: member for key, held in chains.items() for member in held.record.chain}

    async def joined(self, parts: Parts) -> None:
        """Nobody else serves meanwhile: the start is over when its chains are at work."""
        await parts.replicas.wait_until_at_work()

    async def remove_deleted(self, parts: Parts) -> None:
        if topic_ids := await _remove_files(parts):
            await delete_all(parts.ground.store, [deleted_key(topic_id) for topic_id in topic_ids])

    async def after_delete(self, parts: Parts) -> None:
        """Nothing of it stays."""
        await self.remove_deleted(parts)


class SharedStore:
    """That of a cluster, which may be away when this broker starts (C27)."""

    alone = False

    def __init__(self, config: BrokerConfig, open_store: Callable[[BrokerConfig], CoordinationStore]) -> None:
        self._config = config
        self._open_store = open_store

    def open(self, path: Path, journal: ReplicaJournal) -> CoordinationStore:  # noqa: ARG002 - it is elsewhere
        return self._open_store(self._config)

    async def settle_id(self, path: Path, store: CoordinationStore) -> str:  # noqa: ARG002 - it may not answer yet
        return settle_broker_id(path / BROKER_FILE, self._config.broker_id or "", _new_id())

    async def learn(self, parts: Parts, path: Path, doors: Doors) -> int:
        trust, rollback = parts.cluster.trust, parts.cluster.rollback
        trust.open(path / SECRET_FILE)
        await parts.storeless.until_store_answers(doors)
        revision = await _read_store(parts)
        rollback.check_start(parts.ground.journal, revision, accept=self._config.accept_older_store)
        await parts.storeless.insist(trust.learn)
        return revision

    def outlived(self, parts: Parts) -> None:
        if parts.ground.journal.replicas():
            logger.error(
                "this data directory is an old copy: its logs are set aside and fetched again from other brokers"
            )
            parts.copies.put_all_aside()

    def named_logs(self, parts: Parts) -> dict[Key, Member]:  # noqa: ARG002 - whatever the store says
        """None: what the journal does not know was lost, and is fetched again from other brokers."""
        return {}

    async def joined(self, parts: Parts) -> None:
        """Clients find out which chains are at work."""

    async def remove_deleted(self, parts: Parts) -> None:
        """The marks stay: another broker may come back with its copies."""
        await _remove_files(parts)

    async def after_delete(self, parts: Parts) -> None:
        """Every broker removes its copies when it hears of it."""


def open_cluster_store(config: BrokerConfig) -> CoordinationStore:
    """The coordination store of a cluster, as the settings name it."""
    from stentor.coordination.etcd import TlsFiles, open_etcd

    files = (config.coordination_ca_file, config.coordination_cert_file, config.coordination_key_file)
    return open_etcd(
        config.coordination,
        tls=TlsFiles(*files) if any(files) else None,
        user=config.coordination_user,
        password=config.coordination_password(),
    )


async def _read_store(parts: Parts) -> int:
    insist = parts.storeless.insist
    parts.ground.identity.cluster_id = await insist(parts.cluster.identify)
    return await insist(parts.cluster.follower.learn)


async def _remove_files(parts: Parts) -> set[int]:
    """Remove the logs of deleted topics; the ids of all topics that are marked as deleted."""
    deleted = await parts.storeless.insist(partial(parts.ground.store.range, "deleted/"))
    topic_ids = {int(entry.key.split("/")[1], 16) for entry in deleted}
    await asyncio.to_thread(parts.copies.remove_deleted, topic_ids)
    return topic_ids


def _new_id() -> str:
    return f"broker-{uuid.uuid4().hex[:8]}"
