"""A copy of a table that must be taken anew, because the log no longer has what comes next for it.

A second copy is filled beside the first one, which stays readable as it was. Once the second has everything that is
committed, and at least what the first one had, it takes its place in one step. Watchers are told the difference as
changes: none is missed between the two, none is told twice, and a key that changed several times is told once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.client.table_copy import Overtaken, TableChange, TableCopy, TableEntry, TableSequence
from stentor.errors import Compacted, OffsetOutOfRange, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable


logger = logging.getLogger(__name__)


class TableResync(msgspec.Struct, frozen=True):
    """A copy missed changes, because they were removed from the log before they came to it, and has caught up: it was
    taken anew, or went on with what a compaction had left.
    """

    table: str
    before: TableSequence  # how far the copy was
    after: TableSequence  # how far it is now; of what lies between, watchers were told what was left
    changes: int  # how many keys differ
    reason: str


async def reload(copy: TableCopy, why: StentorError) -> None:
    """Take a copy anew, however often that must be tried."""
    while copy.failure is None:
        fresh = TableCopy(copy.core, copy.name, copy.subtree)
        try:
            deadline = copy.core.deadline(None)
            await fresh.follow(copy.topic_id, len(copy.applied), deadline)
            while not fresh.has(copy.sequence):  # its other partitions may go on
                await fresh.wait(copy.sequence, deadline)
        except StentorError as error:
            await fresh.close()
            if not error.retriable and not isinstance(error, Compacted | OffsetOutOfRange):
                copy.fail(error)
                return
            await asyncio.sleep(limits.LINK_WATCH_S)
        except BaseException:
            await fresh.close()
            raise
        else:
            _adopt(copy, fresh, why)
            return


def _adopt(copy: TableCopy, fresh: TableCopy, why: StentorError) -> None:
    after = fresh.sequence
    changes = _difference(copy.entries, fresh.entries, after, copy.partition_of)
    missing = max(0, sum(after) - sum(copy.sequence) - len(changes))
    before, keys = copy.adopt(fresh, changes, Overtaken(missing, after, why.message))
    logger.warning("The copy of table %s was taken anew, %d keys differ: %s", copy.name, keys, why.message)
    tell_resync(copy, before, after, keys, why.message)


def tell_resync(copy: TableCopy, before: TableSequence, after: TableSequence, changes: int, reason: str) -> None:
    """Tell whoever asked for it that a copy has missed changes and is at the present state again."""
    told = TableResync(copy.name, before, after, changes, reason)
    for listener in tuple(copy.resync_listeners):
        listener(told)


def _difference(
    old: dict[str, TableEntry], new: dict[str, TableEntry], after: TableSequence, partition_of: Callable[[str], int]
) -> list[TableChange]:
    """What became of the keys, in the order of versions; a deletion is as new as the copy."""
    found = []
    for key, entry in new.items():
        known = old.get(key)
        if known is None or known.version != entry.version:
            found.append(TableChange(key, known, entry, entry.version, partition_of(key)))
    for key in old.keys() - new.keys():
        partition = partition_of(key)
        found.append(TableChange(key, old[key], None, after[partition] - 1, partition))
    return sorted(found, key=lambda change: change.version)
