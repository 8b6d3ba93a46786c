"""The disk: segments, indexes, logs, recovery, the data directory and the journal."""

from __future__ import annotations

from stentor.storage.directory import DataDirectory, PartitionDirectory
from stentor.storage.files import atomic_write
from stentor.storage.journal import ReplicaJournal, ReplicaState
from stentor.storage.log import PartitionLog
from stentor.storage.memory_log import AnyLog, MemoryLog
from stentor.storage.model import (
    DamagedRange,
    Finding,
    Identity,
    LogFloor,
    LogSettings,
    LogSlice,
    RecoveryReport,
    Truncation,
)

__all__ = [
    "AnyLog",
    "DamagedRange",
    "DataDirectory",
    "Finding",
    "Identity",
    "LogFloor",
    "LogSettings",
    "LogSlice",
    "MemoryLog",
    "PartitionDirectory",
    "PartitionLog",
    "RecoveryReport",
    "ReplicaJournal",
    "ReplicaState",
    "Truncation",
    "atomic_write",
]
