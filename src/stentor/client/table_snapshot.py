"""A table at one sequence, as Arrow, without a copy of it: each partition of its log is read once, up to there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stentor.client.exact import read_exactly
from stentor.client.latest_rows import LatestRows, changes
from stentor.client.table_keys import check_subtree
from stentor.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor.client.sync_client import Client
    from stentor.client.table_copy import TableSequence


class TableSnapshot:
    """The rows of a table at its sequence when this is made, or at an earlier one."""

    def __init__(self, client: Client, name: str, *, subtree: str = "", sequence: TableSequence | None = None) -> None:
        self._client = client
        self._subtree = check_subtree(subtree)
        self.name = name
        found = client.describe_topic(name)
        if found.settings.kind != "table":
            raise InvalidArgument(f"Topic {name} is no table.", hint="`stentor topic list` shows the kinds.")
        latest = client.find_offsets([name], "latest")[name]
        self._id = latest.id
        self._starts = client.find_offsets([name], "earliest")[name].offsets
        self.sequence: TableSequence = tuple(latest.offsets[index] for index in range(len(latest.offsets)))
        if sequence is not None:
            self.sequence = self._checked(sequence)

    def _checked(self, sequence: TableSequence) -> TableSequence:
        if len(sequence) != len(self.sequence):
            raise InvalidArgument(
                f"Table {self.name} has {len(self.sequence)} partitions; the sequence has {len(sequence)}.",
                hint="Use the sequence of a copy of the same table.",
            )
        for partition, (wanted, end) in enumerate(zip(sequence, self.sequence, strict=True)):
            if not self._starts[partition] <= wanted <= end:
                raise OffsetOutOfRange(
                    f"{self.name}/{partition} holds offsets {self._starts[partition]} to {end}; the sequence says"
                    f" {wanted}.",
                    hint="Choose a sequence in that range.",
                    object=f"{self.name}/{partition}",
                )
        return sequence

    @property
    def changes(self) -> int:
        """How many offsets of the log are read."""
        return sum(end - self._starts[partition] for partition, end in enumerate(self.sequence))

    def batches(self, tell: Callable[[int], None] | None = None) -> Iterator[Any]:
        """Rows as pyarrow.RecordBatch: key, version, timestamp, there, value. `tell` gets how many offsets are done."""
        done = 0
        for partition, end in enumerate(self.sequence):
            start = self._starts[partition]
            if start == end:
                continue
            self._check_same()
            latest = LatestRows()
            read = read_exactly(self._client, self.name, partition, start, end).offset_batches()
            for rows in changes(_told(read, tell, done - start), subtree=self._subtree):
                latest.add(rows)
            done += end - start
            yield from latest.batches()
        self._check_same()

    def _check_same(self) -> None:
        if self._client.describe_topic(self.name).id != self._id:
            raise TopicNotFound(
                f"Table {self.name} was deleted and created again while its snapshot was taken.",
                hint="Take the snapshot again.",
                object=self.name,
            )


def _told(
    read: Iterator[tuple[int, Any]], tell: Callable[[int], None] | None, before: int
) -> Iterator[tuple[int, Any]]:
    for first, batch in read:
        yield first, batch
        if tell is not None:
            tell(before + first + batch.num_rows)
