"""Transactions of consumer groups: what a member sends out, and how far it has come by that, decided by one record.

    1. The member asks the head of its group to append a `GroupTransaction`: positions and outputs in one batch of the
       internal topic. The head judges, as for any commit, whether the member owns what it names (C22). Once the record
       is committed the transaction is decided: the positions count, and the outputs will be in their topics.
    2. The member publishes the outputs. Each is a batch for one partition, numbered when the transaction was made: a
       producer id of the member, the transaction's number as its generation, sequence 0. However often and by
       whomever it is published, it is written once (C18).
    3. It says that this is done. Only then its next transaction is taken.

If the member is lost between 1 and 3, whoever owns one of the partitions next does 2 and 3 before it reads: so outputs
keep the order of what they were made from. What a transaction sends out is whatever its handler made the first time;
nobody calls the handler again.

Nobody waits for 2: readers may see some outputs of a transaction before the others.

What is sent out is shown, and a transaction is ended, only to and by its author and whoever owns a partition that it
named (C36): one that a stranger called done would lose outputs that were decided. They also get the token of the
producer id that the outputs are sent under: a stranger who sent under it would keep them from ever being written.

Invariants: a member has at most one transaction that is not done; its numbers grow. One that is not done names the
group's positions as they count already.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.core.folded import Folded, read_snapshot
from stentor.core.groups import GroupStep
from stentor.core.holders import NOBODY

if TYPE_CHECKING:
    from stentor.core.records import Key

_VERSION: Final = 1


class GroupTransaction(msgspec.Struct, frozen=True, tag="transaction", tag_field="type", omit_defaults=True):
    """A member has come this far, and sends this out."""

    group: str
    member: str  # its id
    number: int  # the member's transactions are counted from 1
    positions: dict[int, dict[int, int]]  # by topic id and partition: everything below is done with
    by: str = ""  # the member's name, for people
    at_us: int = 0  # when, by the clock of the head that took it
    outputs: tuple[tuple[str, bytes], ...] = ()  # topics by name, and whole batches, each for one partition
    holder: bytes = NOBODY  # the hash of its author's secret (C36): the author may have left when it is finished

    @property
    def size(self) -> int:
        """Of what it sends out, in bytes."""
        return sum(len(batch) for _, batch in self.outputs)

    def names(self, key: Key) -> bool:
        """Whether it says how far the group has come in a partition."""
        return key[1] in self.positions.get(key[0], {})


class TransactionDone(msgspec.Struct, frozen=True, tag="transaction_done", tag_field="type", omit_defaults=True):
    """All that a transaction sends out is in its topics."""

    group: str
    member: str
    number: int


TransactionRecord = GroupTransaction | TransactionDone | GroupStep


class HeldTransaction(msgspec.Struct, frozen=True, array_like=True):
    """The last transaction of a member."""

    number: int
    unfinished: GroupTransaction | None  # None: it is done
    gone: bool = False  # the member has left its group


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    rows: list[tuple[str, str, HeldTransaction]]


_decoder = msgspec.msgpack.Decoder(_Snapshot)  # made here, under the import lock: logs are opened in several threads

_View = dict[tuple[str, str], HeldTransaction]


class Transactions(Folded[TransactionRecord, tuple[str, str], HeldTransaction]):
    """The transactions of one partition of the internal topic, by group and member: a `core.derived.DerivedState`.

    A member's last number is remembered until it leaves: a request that was long on its way is recognised.
    """

    name = "transactions"
    vital: Final = True  # outputs would be missing whose inputs count as done
    came_later: Final = True  # snapshots of before there were transactions lack them

    @staticmethod
    def fold(view: _View, record: TransactionRecord) -> None:
        """A view after one more record."""
        if isinstance(record, GroupStep):
            _fold_step(view, record)
            return
        key = record.group, record.member
        known = view.pop(key, None)  # and behind the others: they are in the order of the log
        if isinstance(record, GroupTransaction):
            view[key] = HeldTransaction(record.number, record, known is not None and known.gone)
        elif known is not None and known.number != record.number:
            view[key] = known
        elif known is not None and not known.gone:
            view[key] = HeldTransaction(record.number, None)

    # --- questions ------------------------------------------------------------------------------

    def last(self, group: str, member: str) -> HeldTransaction | None:
        """A member's last transaction, by all that the log says."""
        return self._applied.get((group, member))

    def unfinished(self, group: str) -> list[GroupTransaction]:
        """What is not done of a group, as it is committed, the oldest first."""
        return [
            held.unfinished
            for (name, _), held in self._committed.items()
            if name == group and held.unfinished is not None
        ]

    def unfinished_counts(self) -> Counter[str]:
        """Return how many transactions of each group are not done, as it is committed."""
        return Counter(name for (name, _), held in self._committed.items() if held.unfinished is not None)

    def is_busy(self, group: str) -> bool:
        """Whether something of a group is not done, by all that the log says."""
        return any(name == group and held.unfinished is not None for (name, _), held in self._applied.items())

    def busy(self) -> set[str]:
        """Return the groups of which something is not done, by all that the log says."""
        return {name for (name, _), held in self._applied.items() if held.unfinished is not None}

    def size_with(self, transaction: GroupTransaction) -> int:
        """How many bytes would be sent out and are not done, with one more transaction."""
        mine = transaction.group, transaction.member
        others = (held.unfinished.size for key, held in self._applied.items() if held.unfinished and key != mine)
        return transaction.size + sum(others)

    def all_unfinished(self) -> list[GroupTransaction]:
        """Return what is not done, by all that the log says, or by what is committed."""
        held = (*self._committed.values(), *self._applied.values())
        return [each.unfinished for each in held if each.unfinished is not None]

    # --- derived from the log -------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The applied view."""
        rows = [(group, member, held) for (group, member), held in self._applied.items()]
        return msgspec.msgpack.encode(_Snapshot(_VERSION, rows))

    def restore(self, snapshot: bytes | None) -> None:
        """Back to a snapshot; all of it is committed."""
        rows = [] if snapshot is None else read_snapshot(snapshot, _decoder, _VERSION, "transactions").rows
        self._begin_with({(group, member): held for group, member, held in rows})

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        super().check_invariants()
        for (group, member), held in (*self._committed.items(), *self._applied.items()):
            assert held.unfinished is not None or not held.gone
            if held.unfinished is not None:
                assert (held.unfinished.group, held.unfinished.member) == (group, member)
                assert held.unfinished.number == held.number


def _fold_step(view: _View, step: GroupStep) -> None:
    """Who has left is forgotten, but for what is not done."""
    if step.deleted:
        for key in [key for key in view if key[0] == step.name]:
            del view[key]
        return
    for member in step.left:
        held = view.get((step.name, member))
        if held is None:
            continue
        if held.unfinished is None:
            del view[step.name, member]
        else:
            view[step.name, member] = HeldTransaction(held.number, held.unfinished, gone=True)
