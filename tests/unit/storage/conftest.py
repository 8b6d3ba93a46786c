"""Batches without Arrow, and logs in temporary directories."""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from stentor.storage import LogFloor, LogSettings, PartitionLog
from stentor.wire import header as wire

TOPIC_ID = 0xABCDEF
PARTITION = 3
LOG_ID = 77


class Batches:
    """Makes stamped and sealed batches, as the head of a chain would hand them to the log."""

    topic_id = TOPIC_ID
    partition = PARTITION

    def make(
        self,
        offset: int,
        *,
        count: int = 1,
        body: bytes | None = None,
        timestamp_us: int | None = None,
        appended_at_us: int | None = None,
        epoch: int = 1,
        partition: int = PARTITION,
    ) -> bytes:
        body = random.Random(offset).randbytes(60) if body is None else body
        timestamp_us = offset if timestamp_us is None else timestamp_us
        header = wire.BatchHeader(
            length=wire.HEADER_BYTES + len(body),
            header_checksum=0,
            body_checksum=crc32c(body),
            topic_id=TOPIC_ID,
            partition=partition,
            count=count,
            base_offset=offset,
            epoch=epoch,
            attributes=0,
            first_timestamp_us=timestamp_us,
            last_timestamp_us=timestamp_us,
            appended_at_us=offset if appended_at_us is None else appended_at_us,
            producer_id=1,
            generation=0,
            span=count,
            sequence=offset,
        )
        return bytes(wire.pack(header)) + body

    def headers(self, chunk: bytes) -> list[wire.BatchHeader]:
        return [wire.check_header(chunk, position) for position, *_ in wire.extents(chunk)]

    def append(self, log: PartitionLog, **fields) -> bytes:
        """Append one batch at the end of the log."""
        batch = self.make(log.end, **fields)
        log.append(batch, self.headers(batch))
        return batch

    def fill(self, log: PartitionLog, batches: int, **fields) -> list[bytes]:
        return [self.append(log, **fields) for _ in range(batches)]

    def read_all(self, log: PartitionLog, offset: int | None = None, max_bytes: int = 1000) -> list[bytes]:
        """Every batch from `offset` to the end of the log, in the order of reading."""
        offset = log.start if offset is None else offset
        found: list[bytes] = []
        while offset < log.end:
            piece = log.read(offset, log.end, max_bytes)
            assert piece.data, f"nothing at {offset} of {log.start}..{log.end}"
            found += [piece.data[at : at + length] for at, length, *_ in wire.extents(piece.data)]
            offset = piece.next_offset
        return found


class Logs:
    """Opens and reopens the log of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.opened: list[PartitionLog] = []
        self.restored: list[bytes | None] = []
        self.restored_at: list[int] = []
        self.replayed: list[int] = []
        self.snapshots_wanted = 1

    def open(self, *, synced_end: int = 0, directory: Path | None = None, **options) -> PartitionLog:
        self.restored, self.restored_at, self.replayed = [], [], []
        settings = LogSettings(
            segment_bytes=options.pop("segment_bytes", 1 << 20),
            retention_age_s=options.pop("retention_age_s", None),
            retention_bytes=options.pop("retention_bytes", None),
            disk_reserve_bytes=options.pop("disk_reserve_bytes", 0),
        )
        log = PartitionLog.open(
            directory or self.directory,
            topic_id=TOPIC_ID,
            partition=PARTITION,
            log_id=LOG_ID,
            settings=settings,
            floor=LogFloor(synced_end, 0),
            derived=self,
            **options,
        )
        self.opened.append(log)
        return log

    def restore(self, snapshot: bytes | None, offset: int) -> bool:
        self.restored.append(snapshot)
        self.restored_at.append(offset)
        return len(self.restored) >= self.snapshots_wanted

    def replay(self, header: wire.BatchHeader, body: memoryview) -> None:
        assert len(body) == header.length - wire.HEADER_BYTES
        assert crc32c(body) == header.body_checksum
        self.replayed.append(header.base_offset)

    def files(self, suffix: str = ".log") -> list[Path]:
        return sorted(self.directory.glob(f"*{suffix}"))


@pytest.fixture
def batches() -> Batches:
    return Batches()


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "partitions" / "log")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: for tests that sync often and simulate the loss themselves."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB of its own."""
    path = tmp_path / "small-disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)
