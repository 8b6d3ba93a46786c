"""Rules of the driver, each switched off on purpose: a run must notice.

The simulation of the machines (`tests/simulation`) does the same for the rules of the core. These are of what is around
it: that what the machines ask for is done, in order, before anybody hears of it.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from stentor.broker.partitions.chain_desk import ChainDesk
from stentor.broker.partitions.epoch_store import EpochStore
from stentor.broker.partitions.log_sync import LogSync
from stentor.broker.partitions.partition import Partition
from stentor.broker.sessions.reader_stream import ReaderStream

if TYPE_CHECKING:
    from collections.abc import Iterator


def _pretend_to_sync(self: LogSync) -> None:
    self._synced(self._partition.log.end, None)


def _pretend_to_store(self: EpochStore) -> None:
    asked, self._waiting = self._waiting, {}
    self._stored({partition: epoch for partition, epoch in asked.items() if self._holds(partition)}, None, None)


def _never(*_: Any) -> None:
    """Forget it."""


_push = ReaderStream._push


def _push_without_looking(self: ReaderStream, chunks: list[bytes], next_offset: int, size: int) -> None:
    _push(self, chunks, next_offset, size)
    self.cursor.position += 1


MUTATIONS: dict[str, list[tuple[Any, str, Any]]] = {
    "answers before the sync": [(LogSync, "start", _pretend_to_sync)],
    "acts on an epoch that is not on disk": [(EpochStore, "_store", _pretend_to_store)],
    "forgets to let go": [(ChainDesk, "_retire", _never)],
    "serves what is not committed": [(Partition, "committed", property(lambda self: self.log.end))],
    "skips a message": [(ReaderStream, "_push", _push_without_looking)],
}
SEEDS = {
    "answers before the sync": 2,
    "acts on an epoch that is not on disk": 1,
    "forgets to let go": 5,
    "serves what is not committed": 5,
    "skips a message": 1,
}
"""From which seed on a run notices it."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for where, what, instead in MUTATIONS[name]:
            stack.enter_context(patch.object(where, what, instead))
        yield
