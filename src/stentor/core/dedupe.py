"""Idempotent producers: a retried batch is recognised and answered, never written twice (C18, C19).

Theory of operation. Sequences are counted per (producer id, generation, partition) and grow by one
with every batch. A batch is fresh when its sequence is last + 1; it is a resend when it is at or
below last, and then its checksum must be the one that was written. A producer keeps at most
PRODUCER_IN_FLIGHT_BATCHES_MAX batches unanswered, and the last as many are remembered here, so a
legitimate resend is always found. A producer that gave a batch up continues under the next
generation, from sequence 0.

The state is a function of the log's prefix (`core.derived`): nothing but the headers of batches, in log order,
changes it.

Invariants: sequences in a window are consecutive; offsets in a window grow; the number of producers
is at most PRODUCERS_PER_PARTITION_MAX (the one silent for longest in the log is forgotten first).

Producer id 0 means "no dedupe wanted".

Rights (C36). Whoever sends under the id of another producer can make that one's batches look old. So an id is the hash
of a secret token, with the highest bit set, and a session must show the token before it publishes under such an id: ids
stand in the headers of batches, where every reader sees them; tokens do not. The id is all that a log has to keep, and
also tells a new head who may use it. Older clients send under random ids without a token, below `LASTING`: these stay
open to whoever knows them.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from stentor import limits
from stentor.core.horizon import HORIZON
from stentor.errors import CorruptData, SequenceError

if TYPE_CHECKING:
    from stentor.core.records import Batch

ANONYMOUS = 0
LASTING: Final = 1 << 63
"""The mark of an id that belongs to a token, which also lasts; ids that older clients choose are below it."""

SEARCHED: Final = ("forgotten", "old_generation")
"""Refusals of a batch that may be in the log: the log is searched for that very batch before anything is said (C32)."""


TAKEN: Final = ("changed", *SEARCHED)
"""Refusals of a batch that is not in the log, and never will be under its number: something else was sent there."""


def lasting_id(token: bytes) -> int:
    """The producer id that belongs to a secret token."""
    return LASTING | int.from_bytes(blake2b(token, digest_size=8, person=b"stentor producer").digest(), "little")


class Resend(msgspec.Struct, frozen=True, gc=False):
    """The batch is in the log already."""

    base_offset: int
    end_offset: int
    appended_at_us: int
    refused: bool = False  # it is there as an outcome without effect (C20)


class _Written(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One remembered batch of a producer."""

    sequence: int
    checksum: int
    base_offset: int
    end_offset: int
    appended_at_us: int
    refused: bool = False


class _Producer(msgspec.Struct, array_like=True):
    """What is remembered of one producer."""

    generation: int
    window: list[_Written]


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    producers: dict[int, _Producer]


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once, and logs
# are recovered in several threads.
_decoder = msgspec.msgpack.Decoder(_Snapshot)


class Dedupe:
    """The dedupe state of one partition: a `core.derived.DerivedState`."""

    name: Final = "producers"
    wants_bodies: Final = False
    undoes: Final = False  # the order in which producers are forgotten cannot be undone; headers are quickly read again
    vital: Final = False  # what is forgotten is looked for in the log (C32)
    came_later: Final = False

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()  # the one that was heard last at the end

    def check(self, producer_id: int, generation: int, sequence: int, checksum: int) -> Resend | None:
        """None for a fresh batch, Resend for a known one; SequenceError for what fits neither."""
        if producer_id == ANONYMOUS:
            return None
        producer = self._producers.get(producer_id)
        if producer is None or generation > producer.generation:
            if sequence == 0:
                return None
            raise SequenceError(
                f"Producer {producer_id:x} starts with sequence {sequence}; this partition does not know it.",
                hint="Its earlier batches are no longer remembered; open a new producer.",
                reason="unknown_producer",
            )
        if generation < producer.generation:
            raise SequenceError(
                f"Producer {producer_id:x} has moved on to generation {producer.generation};"
                f" a batch of generation {generation} comes too late.",
                hint="Only one instance of a producer may be alive.",
                reason="old_generation",
            )
        return self._check_sequence(producer_id, producer, sequence, checksum)

    def _check_sequence(self, producer_id: int, producer: _Producer, sequence: int, checksum: int) -> Resend | None:
        last = producer.window[-1].sequence
        if sequence == last + 1:
            return None
        if sequence > last:
            raise SequenceError(
                f"Producer {producer_id:x} sent sequence {sequence} where {last + 1} was expected.",
                hint="Resend in order from the oldest unacknowledged batch.",
                reason="gap",
                expected=last + 1,
            )
        index = sequence - producer.window[0].sequence
        if index < 0:
            raise SequenceError(
                f"Producer {producer_id:x} sent sequence {sequence} again, which is no longer remembered.",
                hint="A producer may have only so many batches unanswered; do not publish this one again.",
                reason="forgotten",
            )
        if producer.window[index].checksum != checksum:
            raise SequenceError(
                f"Producer {producer_id:x} sent sequence {sequence} again, but not the same batch.",
                hint="A batch that was sent must never change; open a new producer.",
                reason="changed",
            )
        known = producer.window[index]
        return Resend(known.base_offset, known.end_offset, known.appended_at_us, known.refused)

    def remembered_from(self, producer_id: int) -> int:
        """The offset of the oldest batch that is remembered of a producer: what it wrote earlier lies below."""
        producer = self._producers.get(producer_id)
        return 0 if producer is None else producer.window[0].base_offset

    def record(
        self,
        producer_id: int,
        generation: int,
        sequence: int,
        checksum: int,
        base_offset: int,
        end_offset: int,
        appended_at_us: int,
        refused: bool = False,
    ) -> None:
        """Remember a batch that is in the log now."""
        if producer_id == ANONYMOUS:
            return
        producer = self._producers.pop(producer_id, None)
        if producer is None or producer.generation != generation or producer.window[-1].sequence + 1 != sequence:
            producer = _Producer(generation, [])  # after a gap, too: a compaction took what was between
        producer.window.append(_Written(sequence, checksum, base_offset, end_offset, appended_at_us, refused))
        if len(producer.window) > limits.PRODUCER_IN_FLIGHT_BATCHES_MAX:
            del producer.window[0]
        self._producers[producer_id] = producer  # last in order: the most recently heard
        if len(self._producers) > limits.PRODUCERS_PER_PARTITION_MAX:
            self._producers.popitem(last=False)

    def apply(self, batch: Batch, body: bytes | memoryview = b"") -> None:
        """The same, from a batch's header. A horizon brings everything: what is below it may have been compacted."""
        if batch.control and batch.generation == HORIZON and body:
            self.restore(bytes(body))
            return
        self.record(
            batch.producer_id,
            batch.generation,
            batch.sequence,
            batch.body_checksum,
            batch.base_offset,
            batch.end_offset,
            batch.appended_at_us,
            batch.refused,
        )

    def allows(self, _: Batch, __: bytes | memoryview) -> bool:
        """It has no conditions."""
        return True

    def commit(self, end: int) -> None:
        """Only the head asks, of what is in its log: there is no other view."""

    def cut(self, end: int) -> None:
        """Never asked: it does not undo."""

    def snapshot(self) -> bytes:
        """The whole state, in order."""
        return msgspec.msgpack.encode(_Snapshot(1, self._producers))

    def restore(self, snapshot: bytes | None) -> None:
        """Back to a snapshot; None is the empty state."""
        if snapshot is None:
            self._producers = OrderedDict()
            return
        try:
            self._producers = OrderedDict(_decoder.decode(snapshot).producers)
        except msgspec.MsgspecError as error:
            raise CorruptData(f"A producer snapshot cannot be read: {error}.") from error

    @property
    def producer_count(self) -> int:
        """How many it remembers."""
        return len(self._producers)

    def check_invariants(self) -> None:
        """Called by tests and the simulator after every step."""
        assert len(self._producers) <= limits.PRODUCERS_PER_PARTITION_MAX
        for producer in self._producers.values():
            window = producer.window
            assert 0 < len(window) <= limits.PRODUCER_IN_FLIGHT_BATCHES_MAX
            for before, after in pairwise(window):
                assert after.sequence == before.sequence + 1
                assert after.base_offset >= before.end_offset
