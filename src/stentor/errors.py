"""Every error a user of Stentor can meet, in one tree.

    StentorError
    ├── InvalidArgument          the call itself is wrong (a name, a number, a type)
    │   └── MissingPackage       an optional package that this needs is not installed (also an ImportError)
    ├── Closed                   the object was closed before or during the call
    ├── ForkDetected             a client was carried into a forked process
    ├── DeadlineExceeded         no answer in time (also a TimeoutError)
    ├── ConnectionFailed         no broker could be reached, or the link broke
    ├── ProtocolError            the other side said something the protocol forbids
    │   ├── VersionMismatch      no protocol version in common
    │   └── PeerRefused          somebody claims to be a broker of the cluster and does not prove it
    ├── PublishError             some messages were not acknowledged (.failed)
    │   ├── UnknownOutcome       sent, but whether it is in the log is not known
    │   ├── SequenceError        the broker does not accept this producer sequence
    │   └── ProducerNotProven    the connection may not send under this lasting producer id
    ├── TopicNotFound / TopicExists / PartitionNotFound
    ├── OffsetOutOfRange         the log does not hold that offset (.start .end)
    ├── SlowSubscriber           a subscription passed its max_lag
    ├── DecodeFailed             a value does not fit the type the topic was opened with
    ├── LimitExceeded            a named bound was passed
    ├── NotReady                 the broker cannot do this now; try again
    │   ├── NotHead              another broker is the head of that partition (.head .epoch)
    │   └── EndUnknown           where the committed messages end is not certain now (.sure_to)
    ├── StorageError             the disk said no
    │   ├── DiskFull             no room; nothing was written, reads go on
    │   ├── OutOfDescriptors     the process may open no more files; nothing was written, try again
    │   ├── CorruptData          bytes on disk or on the wire fail their checksum
    │   ├── LogFailed            a sync failed; this log takes no more writes
    │   ├── DirectoryInUse       another broker holds the data directory
    │   ├── DirectoryUnusable    missing, read-only, or not ours
    │   └── FormatTooNew         written by a newer Stentor
    ├── CoordinationError        the coordination store did not do what was asked
    │   ├── CoordinationUnavailable  it cannot be reached; nothing was changed; try again
    │   ├── CoordinationRefused  it said no: credentials, rights, a request it does not take
    │   ├── UnknownSwap          a change was sent, but whether it was made is not known: read it back
    │   └── LeaseExpired         the lease is gone, and the keys that were attached to it
    └── InternalError            a bug in Stentor; please report it

Each class has a stable `code` (it travels on the wire) and says whether trying again can help.
The text of an error is one sentence (what failed, on what, actual against limit) and a hint
(what to do now).
"""

from __future__ import annotations

from typing import Any, ClassVar


class StentorError(Exception):
    """The root of the tree: a sentence, and what to do about it."""

    code: ClassVar[str] = "error"
    retriable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        operation: str = "",
        object: str = "",  # noqa: A002 - the vocabulary's own word for what failed
        **detail: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.operation = operation
        self.object = object
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.operation, self.object, self.detail))


def _rebuild(
    kind: type[StentorError], message: str, hint: str, operation: str, what: str, detail: dict[str, Any]
) -> StentorError:
    """Errors cross process borders (Spark, multiprocessing), so they must pickle."""
    return kind(message, hint=hint, operation=operation, object=what, **detail)


class InvalidArgument(StentorError, ValueError):
    code = "invalid_argument"


class MissingPackage(InvalidArgument, ImportError):
    code = "missing_package"


class Closed(StentorError):
    code = "closed"


class ForkDetected(StentorError):
    code = "fork_detected"


class DeadlineExceeded(StentorError, TimeoutError):
    code = "deadline_exceeded"
    retriable = True


class ConnectionFailed(StentorError, ConnectionError):
    code = "connection_failed"
    retriable = True


class ProtocolError(StentorError):
    code = "protocol_error"


class VersionMismatch(ProtocolError):
    code = "version_mismatch"


class PeerRefused(ProtocolError):
    """Somebody claims to be a broker of this cluster, and is not, or does not prove it (S6)."""

    code = "peer_refused"


class PublishError(StentorError):
    """Some messages were not acknowledged.

    `failed` lists a FailedBatch for each batch that was given up: topic, partition, count, error.
    """

    code = "publish_failed"

    @property
    def failed(self) -> list[Any]:
        failed: list[Any] = self.detail.get("failed", [])
        return failed


class UnknownOutcome(PublishError):
    code = "unknown_outcome"


class SequenceError(PublishError):
    code = "sequence_error"


class ProducerNotProven(PublishError):
    code = "producer_not_proven"


class TopicNotFound(StentorError, LookupError):
    code = "topic_not_found"


class TopicExists(StentorError):
    code = "topic_exists"


class PartitionNotFound(StentorError, LookupError):
    code = "partition_not_found"


class OffsetOutOfRange(StentorError):
    code = "offset_out_of_range"

    @property
    def start(self) -> int | None:
        return self.detail.get("start")

    @property
    def end(self) -> int | None:
        return self.detail.get("end")


class SlowSubscriber(StentorError):
    code = "slow_subscriber"


class DecodeFailed(StentorError, ValueError):
    code = "decode_failed"


class LimitExceeded(StentorError):
    code = "limit_exceeded"


class NotReady(StentorError):
    code = "not_ready"
    retriable = True


class NotHead(NotReady):
    """Another broker takes this partition's messages; `detail` names it (C26)."""

    code = "not_head"

    @property
    def head(self) -> str:
        return str(self.detail.get("head", ""))


class EndUnknown(NotReady):
    """No member of the chain can say for certain where the committed messages end (C30)."""

    code = "end_unknown"

    @property
    def sure_to(self) -> int:
        """Everything below this offset is known to be committed."""
        return int(self.detail.get("sure_to", 0))


class StorageError(StentorError):
    code = "storage_error"


class DiskFull(StorageError):
    code = "disk_full"
    retriable = True


class OutOfDescriptors(StorageError):
    code = "out_of_descriptors"
    retriable = True


class CorruptData(StorageError):
    code = "corrupt_data"


class LogFailed(StorageError):
    code = "log_failed"


class DirectoryInUse(StorageError):
    code = "directory_in_use"


class DirectoryUnusable(StorageError):
    code = "directory_unusable"


class FormatTooNew(StorageError):
    code = "format_too_new"


class CoordinationError(StentorError):
    code = "coordination_error"


class CoordinationUnavailable(CoordinationError):
    code = "coordination_unavailable"
    retriable = True


class CoordinationRefused(CoordinationError):
    code = "coordination_refused"


class UnknownSwap(CoordinationError):
    code = "unknown_swap"


class LeaseExpired(CoordinationError):
    code = "lease_expired"


class InternalError(StentorError):
    code = "internal_error"


def _tree(root: type[StentorError]) -> dict[str, type[StentorError]]:
    known = {root.code: root}
    for child in root.__subclasses__():
        known.update(_tree(child))
    return known


BY_CODE: dict[str, type[StentorError]] = _tree(StentorError)


def from_wire(
    code: str,
    message: str,
    *,
    hint: str = "",
    operation: str = "",
    what: str = "",
    retriable: bool | None = None,
    detail: dict[str, Any] | None = None,
) -> StentorError:
    """Rebuild an error that a broker sent; an unknown code from a newer broker stays readable."""
    error = BY_CODE.get(code, StentorError)(message, hint=hint, operation=operation, object=what, **(detail or {}))
    if retriable is not None:
        error.retriable = retriable
    return error
