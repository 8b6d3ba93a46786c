"""Who sends, and to which partition: ids of producers that last, and rows spread by their keys."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from zlib import crc32

from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor.client.lanes import ProducerCore

_GENERATION_MAX = 2**32 - 1  # what the header of a batch has room for


def check_generation(generation: object) -> None:
    """A generation that fits no header would be noticed when messages have been taken already."""
    if isinstance(generation, bool) or not isinstance(generation, int) or not 0 <= generation <= _GENERATION_MAX:
        raise InvalidArgument(
            f"generation={generation!r} is not a generation.", hint=f"Use a number from 0 to {_GENERATION_MAX}."
        )


def lasting_id(identity: str) -> int:
    """The producer id of a name: whoever has the name continues what was sent under it."""
    if not isinstance(identity, str):
        raise InvalidArgument(f"A producer's identity is text, not {type(identity).__name__}.")
    return int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "little") >> 2 or 1


def by_partition(rows: Any, core: ProducerCore, partition: int | None) -> list[tuple[int, Any]]:
    """Split a batch by key hash, keeping the order inside each partition."""
    if partition is not None:
        return [(core.lane_for(None, partition).partition, rows)]
    if core.single is not None:
        return [(0, rows)]
    count = len(core.lanes)
    core.turn += 1
    turn = core.turn % count
    chosen: dict[int, list[int]] = {}
    for index, key in enumerate(rows.column(1).to_pylist()):
        if core.partitioner is not None:
            lane = core.lane_for(key, None).partition
        else:
            lane = turn if key is None else crc32(key) % count
        chosen.setdefault(lane, []).append(index)
    return [(lane, rows.take(indices)) for lane, indices in sorted(chosen.items())]
