"""The copies of a partition in the data directories of brokers, read as files: are they the same bytes?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.storage.directory import PARTITIONS_FOLDER, partition_name
from stentor.wire.header import HEADER_BYTES, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEGMENT_HEADER_BYTES = 64


def log_files(data: Path, topic_id: int, partition: int) -> list[Path]:
    """The segments of a partition, in order."""
    return sorted((data / PARTITIONS_FOLDER / partition_name(topic_id, partition)).glob("*.log"))


def batches(data: Path, topic_id: int, partition: int) -> Iterator[tuple[int, int, bytes]]:
    """(first offset, end, bytes) of each batch, up to where the zeros begin."""
    for file in log_files(data, topic_id, partition):
        content = file.read_bytes()
        position = SEGMENT_HEADER_BYTES
        while position + HEADER_BYTES <= len(content):
            header = unpack(content, position)
            if header.length < HEADER_BYTES:
                break
            yield header.base_offset, header.end_offset, content[position : position + header.length]
            position += header.length


def positions(file: Path) -> list[tuple[int, int, int]]:
    """(offset, from byte, to byte) of each batch of a segment."""
    content = file.read_bytes()
    found = []
    position = SEGMENT_HEADER_BYTES
    while position + HEADER_BYTES <= len(content):
        header = unpack(content, position)
        if header.length < HEADER_BYTES:
            break
        found.append((header.base_offset, position, position + header.length))
        position += header.length
    return found


def differences(directories: dict[str, Path], topic_id: int, partition: int, end: int) -> list[str]:
    """Where copies differ below `end`, or do not reach it; in words."""
    copies = {
        name: {first: data for first, after, data in batches(path, topic_id, partition) if after <= end}
        for name, path in directories.items()
    }
    found = []
    for name, copy in copies.items():
        reached = max((after for _, after, _ in batches(directories[name], topic_id, partition)), default=0)
        if reached < end:
            found.append(f"partition {partition} of {name} ends at {reached}, not {end}")
        first = min(copy, default=end)
        for other, others in copies.items():
            common = max(first, min(others, default=end))
            mine = {offset: data for offset, data in copy.items() if offset >= common}
            theirs = {offset: data for offset, data in others.items() if offset >= common}
            if name < other and mine != theirs:
                at = min(offset for offset in mine.keys() | theirs if mine.get(offset) != theirs.get(offset))
                found.append(f"partition {partition} of {name} and {other} differ at {at}")
    return found
