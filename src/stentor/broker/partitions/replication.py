"""Batches that come down a chain: what the frame says, checked before anything is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.core.replica_events import Offered
from stentor.errors import ProtocolError
from stentor.wire import header as batch_header
from stentor.wire import peer

if TYPE_CHECKING:
    from stentor.core.records import Key


def unpack_offer(sender: str, body: memoryview) -> tuple[Key, Offered, memoryview]:
    """Which partition a REPLICATE frame is for, what it claims, and its batches."""
    topic_id, index, epoch, attempt, previous, base, durable, quorum = peer.REPLICATE.unpack_from(body)
    offered = Offered(sender, epoch, attempt, previous, base, durable, quorum)
    return (topic_id, index), offered, body[peer.REPLICATE.size :]


def check_run(key: Key, name: str, offered: Offered, chunk: bytes) -> list[batch_header.BatchHeader]:
    """Batches must be what their frame says: of this partition, one after the other, of no later epoch than it."""
    if batch_header.verify_run(chunk, 0, len(chunk)) != len(chunk):
        raise ProtocolError("A broker sent batches that are not whole.")
    headers = [batch_header.unpack(chunk, position) for position, _, _, _ in batch_header.extents(chunk)]
    end, epoch = offered.base, offered.previous
    for header in headers:
        if (
            (header.topic_id, header.partition) != key
            or header.base_offset != end
            or not header.span
            or not epoch <= header.epoch <= offered.epoch
        ):
            raise ProtocolError(f"A broker sent a batch that does not continue {name} at {end}.")
        end, epoch = header.end_offset, header.epoch
    if end == offered.base or end > batch_header.OFFSET_MAX:
        raise ProtocolError(f"A broker sent no batches that {name} could hold.")
    return headers


def split_bodies(chunk: bytes, headers: list[batch_header.BatchHeader]) -> list[memoryview]:
    """The body of each of these batches, which follow each other in `chunk`."""
    view, bodies, position = memoryview(chunk), [], 0
    for header in headers:
        bodies.append(view[position + batch_header.HEADER_BYTES : position + header.length])
        position += header.length
    return bodies
