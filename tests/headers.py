"""Batches for pure machines, by their headers alone."""

from typing import NamedTuple

from stentor.core.replica_events import Append, Appended, Publish


class Batch(NamedTuple):
    """A batch by its header."""

    base_offset: int
    end_offset: int
    epoch: int
    producer_id: int
    generation: int
    sequence: int
    body_checksum: int
    appended_at_us: int
    refused: bool = False

    @property
    def passed_over(self) -> bool:
        return self.refused

    @property
    def control(self) -> bool:
        return False


def appended(publish: Publish, append: Append, body: bytes = b"") -> Appended:
    """The log has taken what was published."""
    batch = Batch(
        append.base_offset,
        append.base_offset + publish.count,
        append.epoch,
        publish.producer_id,
        publish.generation,
        publish.sequence,
        publish.checksum,
        append.appended_at_us,
        append.refused,
    )
    return Appended(publish, append, batch, body)
