"""What the cluster's parts need of the copies that this broker holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stentor.core.records import Key
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEvent
    from stentor.storage.memory_log import AnyLog


class LocalCopy(Protocol):
    """A partition's copy on this broker."""

    @property
    def key(self) -> Key: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def log(self) -> AnyLog: ...

    def step(self, event: ReplicaEvent) -> None: ...
