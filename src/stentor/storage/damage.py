"""The record of damage beside a segment: `{base:020d}.damaged`, sealed JSON that people can read too.

A damaged range is refused for good, also after a restart, and its offsets are never given to other
messages. The record is a convenience and not a proof: without it, or with a damaged one, a scan of the
segment finds the same ranges again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stentor.errors import CorruptData, StorageError
from stentor.storage.files import FileKind, atomic_write, seal, unseal
from stentor.storage.model import DamagedRange, Identity
from stentor.storage.segment import DAMAGED_SUFFIX, Segment, segment_path
from stentor.storage.state import logger

# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.json.Decoder(tuple[DamagedRange, ...])


def load_damage(directory: Path, base: int) -> tuple[DamagedRange, ...] | None:
    """The recorded ranges of a segment: none if there is no record, None if it cannot be read."""
    path = segment_path(directory, base, DAMAGED_SUFFIX)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return _decoder.decode(unseal(FileKind.DAMAGE, data, what=str(path)))
    except (CorruptData, msgspec.MsgspecError):
        return None


def record_damage(segment: Segment, damaged: Sequence[DamagedRange], identity: Identity) -> None:
    """Refuse these ranges from now on. What cannot be written down is refused until the restart."""
    segment.damaged = tuple(damaged)
    path = segment.path(DAMAGED_SUFFIX)
    try:
        if damaged:
            atomic_write(path, seal(FileKind.DAMAGE, msgspec.json.encode(segment.damaged)))
        else:
            path.unlink(missing_ok=True)
    except (StorageError, OSError) as error:
        logger.warning("Damage in the log of %s could not be recorded: %s", identity, error)
    for damage in damaged:
        logger.error(
            "Offsets %d to %d of %s are damaged (%s). Readers get an error for them.",
            damage.first_offset,
            damage.next_offset - 1,
            identity,
            damage.reason,
        )


def damage_error(segments: Sequence[Segment], damage: DamagedRange, identity: Identity) -> CorruptData:
    """What a reader is told who asked for an offset inside `damage`."""
    resume_at = damage.next_offset
    for segment in segments:
        while (following := segment.damage_at(resume_at)) is not None:
            resume_at = following.next_offset
    return CorruptData(
        f"Offsets {damage.first_offset} to {damage.next_offset - 1} of {identity} are damaged: {damage.reason}.",
        hint=f"Reading can continue at offset {resume_at}. `stentor doctor` shows all damage.",
        operation="read",
        object=str(identity),
        first_offset=damage.first_offset,
        next_offset=damage.next_offset,
        resume_at=resume_at,
    )
