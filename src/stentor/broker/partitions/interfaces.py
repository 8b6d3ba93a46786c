"""What a partition needs of those who publish to it, follow it and carry its batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from stentor.broker.partitions.lag import Lagging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.broker.write_coalescing import WriteCoalescing
    from stentor.core.replica_events import Answer
    from stentor.errors import StentorError
    from stentor.wire.peer import PeerMessage


class DeferredSync(Protocol):
    """A sync that waits for the end of the read whose batches it is for."""

    @property
    def is_fed(self) -> bool:
        """Whether a successor gets the same batches, and should get them first."""
        ...

    def run_deferred(self, *, in_loop: bool) -> None: ...


class Sender(Protocol):
    """A connection that batches come on: it can be told to wait, and may say when a sync is best begun."""

    def hold(self) -> None: ...
    def release(self) -> None: ...
    def defer_sync(self, sync: DeferredSync) -> bool: ...


class Publisher(Sender, Protocol):
    """A client's connection: it is answered too."""

    def published(self, correlation: int, answer: Answer) -> None: ...
    def fail(self, correlation: int, error: StentorError, operation: str, what: str = "") -> None: ...
    def flush(self) -> None: ...


class Request(msgspec.Struct, frozen=True):
    """Who waits for an answer to a publish."""

    publisher: Publisher
    correlation: int


class Pumped(Protocol):
    """Somebody who wants to hear of commits."""

    def pump(self) -> None: ...


class Follower(Pumped, Lagging, Protocol):
    """A reader that follows a partition."""

    def stop(self) -> None: ...
    def fail(self, error: StentorError) -> None: ...


class DataLink(Protocol):
    """The connection to the next member of a chain."""

    name: str
    coalescing: WriteCoalescing

    @property
    def writable(self) -> bool: ...

    def send(self, message: PeerMessage) -> None: ...
    def write(self, buffers: Sequence[bytes], size: int) -> None: ...
    def join(self, feed: Wakeable) -> None: ...
    def leave(self, feed: Wakeable) -> None: ...


class Wakeable(Protocol):
    """Something that sends for as long as a link takes it."""

    def wake(self) -> None: ...
