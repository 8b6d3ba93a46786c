"""Every error a user of Stentor can meet, in one tree.

    StentorError
    ├── InvalidArgument          the call itself is wrong (a name, a number, a type)
    │   ├── SchemaRefused        a schema, or the rows of one, is not what its topic takes
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
    ├── TopicReplaced            a stored position is of an earlier topic of the same name
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
    """The root of the tree: a sentence, and what to do about it.

    Catch it to catch everything that Stentor raises. `retriable` says whether trying again can help.
    """

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
    """The call itself is wrong: a name, a number, a type, or two arguments that do not go together. Nothing was
    sent.

    Correct the call; the text says what is allowed.
    """

    code = "invalid_argument"


class SchemaRefused(InvalidArgument):
    """A schema changes more than it may, or the rows of a tabular topic are not of a schema that the topic has.

    Add nullable columns only; for any other change make another topic. The text names the difference.
    """

    code = "schema_refused"


class MissingPackage(InvalidArgument, ImportError):
    """An optional package that this call needs is not installed. It is also an `ImportError`.

    Install what the text names.
    """

    code = "missing_package"


class Closed(StentorError):
    """The client, producer, subscription or broker was closed before or during the call.

    Make a new one. A read that was left before its end is begun again at the offset where you were.
    """

    code = "closed"


class ForkDetected(StentorError):
    """A client was carried into a forked process, where the thread that serves it does not exist.

    Connect in the child process; the parent's client stays usable in the parent.
    """

    code = "fork_detected"


class DeadlineExceeded(StentorError, TimeoutError):
    """No answer came in time. It is also a `TimeoutError`. What was asked for may still happen.

    Try again, or allow more time with `timeout=`. Check that the broker is there with `stentor doctor`.
    """

    code = "deadline_exceeded"
    retriable = True


class ConnectionFailed(StentorError, ConnectionError):
    """No broker could be reached, or the link broke during a call that is not repeated by itself.

    Check address, broker and network; then try again. Producers and subscriptions reconnect by themselves.
    """

    code = "connection_failed"
    retriable = True


class ProtocolError(StentorError):
    """The other side said something that the protocol forbids. Often it is no Stentor broker at all.

    Check the address and the port: 7440 is for clients, 7441 for HTTP.
    """

    code = "protocol_error"


class VersionMismatch(ProtocolError):
    """Client and broker have no version of the protocol in common.

    Upgrade the older of the two.
    """

    code = "version_mismatch"


class PeerRefused(ProtocolError):
    """Somebody claims to be a broker of this cluster, and is not, or does not prove it.

    Check the coordination store and the data directory of that broker; only brokers of one cluster may speak as
    such.
    """

    code = "peer_refused"


class PublishError(StentorError):
    """Some messages were not acknowledged. `failed` has an entry for each batch that was given up, with topic,
    partition, count and error.

    Look at the errors in `failed`. What failed before it was sent can be sent again; for `UnknownOutcome` see
    there.
    """

    code = "publish_failed"

    @property
    def failed(self) -> list[Any]:
        """A FailedBatch for each batch that was given up."""
        failed: list[Any] = self.detail.get("failed", [])
        return failed


class UnknownOutcome(PublishError):
    """Messages were sent, but whether they are in the log is not known: no answer came, or the head changed.

    Read the partition to find out. Sending them again may double them, unless the producer has an `identity`.
    """

    code = "unknown_outcome"


class SequenceError(PublishError):
    """The broker does not accept the number of a batch: one before it is missing, or it was forgotten.

    Let only one instance of a producer be alive. Make a new producer for what was not acknowledged; under an
    `identity`, send the same batches in the same order.
    """

    code = "sequence_error"


class ProducerNotProven(PublishError):
    """The connection may not send under the id of this lasting producer.

    Give the `identity` and the `secret` under which it was begun.
    """

    code = "producer_not_proven"


class TopicNotFound(StentorError, LookupError):
    """There is no topic of that name, and the call makes none.

    Make it with `client.create_topic`, or look with `stentor topic list`.
    """

    code = "topic_not_found"


class TopicExists(StentorError):
    """There is a topic of that name already.

    Use it, or give `exist_ok=True`.
    """

    code = "topic_exists"


class TopicReplaced(StentorError):
    """A stored position is of an earlier topic of the same name, which was deleted and made anew.

    Drop the stored positions of that topic, and read the new one with `start="earliest"`.
    """

    code = "topic_replaced"


class PartitionNotFound(StentorError, LookupError):
    """The topic has no partition of that number, or it was deleted.

    Partitions count from 0; `stentor topic describe` shows them.
    """

    code = "partition_not_found"


class OffsetOutOfRange(StentorError):
    """The log does not hold that offset: retention has deleted it, or the log ends before it. `start` and `end` say
    what there is.

    Start at `start`, or at `"earliest"` or `"latest"`. Keep messages longer if a consumer needs more time.
    """

    code = "offset_out_of_range"

    @property
    def start(self) -> int | None:
        """The first offset there is."""
        return self.detail.get("start")

    @property
    def end(self) -> int | None:
        """The offset behind the last message there is."""
        return self.detail.get("end")


class SlowSubscriber(StentorError):
    """A subscription with `on_slow="raise"` fell further behind than its `max_lag`.

    Make the handler faster, spread the work over more partitions, or choose `"catch_up"` or `"skip"`.
    """

    code = "slow_subscriber"


class DecodeFailed(StentorError, ValueError):
    """A value does not fit the type that the topic was opened with. `object` says where the message is.

    Open the topic with `on_error="skip"` or `"raw"` to go on, or with a type that fits.
    """

    code = "decode_failed"


class LimitExceeded(StentorError):
    """A named bound was passed, such as the size of a message or the number of topics. The text has the number and
    the limit.

    Stay below the limit; large data belongs in an object store, with its address in the message.
    """

    code = "limit_exceeded"


class NotReady(StentorError):
    """The broker cannot do this now: it is starting, its chain is being put together, or it is cut off.

    Try again; clients do so by themselves until the deadline. If it lasts, ask `stentor doctor`.
    """

    code = "not_ready"
    retriable = True


class NotHead(NotReady):
    """Another broker takes this partition's messages; `head` names it.

    Nothing: producers follow by themselves.
    """

    code = "not_head"

    @property
    def head(self) -> str:
        """The id of the broker that takes them."""
        return str(self.detail.get("head", ""))


class EndUnknown(NotReady):
    """No member of the chain can say for certain where the committed messages end. `sure_to` is how far it is
    certain.

    Bring the missing replicas back, allow more time, or take what is known with `stale="allow"`.
    """

    code = "end_unknown"

    @property
    def sure_to(self) -> int:
        """Everything below this offset is known to be committed."""
        return int(self.detail.get("sure_to", 0))


class StorageError(StentorError):
    """The disk of the broker said no.

    Look at the broker's log, and at the disk.
    """

    code = "storage_error"


class DiskFull(StorageError):
    """The broker's disk has no room. Nothing was written, and reads go on.

    Free some room or shorten retention. Writes go on by themselves then.
    """

    code = "disk_full"
    retriable = True


class OutOfDescriptors(StorageError):
    """The broker's process may open no more files. Nothing was written.

    Raise its limit of open files (`LimitNOFILE`), or use fewer partitions. Try again.
    """

    code = "out_of_descriptors"
    retriable = True


class CorruptData(StorageError):
    """Bytes on disk or on the wire fail their checksum. Nothing damaged is ever handed out.

    Check the disk. The hint says at which offset reading can go on, if it can; `stentor doctor` shows all damage.
    """

    code = "corrupt_data"


class LogFailed(StorageError):
    """A sync of this log failed, so it takes no more writes.

    Check the disk and the system log; a restart changes nothing. What was synced can be read: copy it to a topic on
    a sound disk. In a cluster others take over by themselves; replace the disk and start with an empty directory.
    """

    code = "log_failed"


class DirectoryInUse(StorageError):
    """Another broker holds the data directory.

    Stop that broker, or name another directory.
    """

    code = "directory_in_use"


class DirectoryUnusable(StorageError):
    """The data directory is missing, read-only, or not one of Stentor's.

    Check the path and its rights.
    """

    code = "directory_unusable"


class FormatTooNew(StorageError):
    """The data directory was written by a newer Stentor.

    Start that version, or a newer one.
    """

    code = "format_too_new"


class CoordinationError(StentorError):
    """The coordination store did not do what was asked.

    Look at etcd, and at the broker's log.
    """

    code = "coordination_error"


class CoordinationUnavailable(CoordinationError):
    """The coordination store cannot be reached. Nothing was changed; messages go on as before.

    Bring etcd back; try again.
    """

    code = "coordination_unavailable"
    retriable = True


class CoordinationRefused(CoordinationError):
    """The coordination store said no: credentials, rights, or a request that it does not take.

    Check `coordination_user`, the password file and the rights of that user.
    """

    code = "coordination_refused"


class UnknownSwap(CoordinationError):
    """A change was sent to the coordination store, but whether it was made is not known.

    Read it back: describe the topic before you try again.
    """

    code = "unknown_swap"


class LeaseExpired(CoordinationError):
    """A lease in the coordination store is gone, with the keys that were attached to it.

    Nothing: brokers make a new one by themselves.
    """

    code = "lease_expired"


class InternalError(StentorError):
    """A bug in Stentor.

    Please report it, with the text and the broker's log.
    """

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
