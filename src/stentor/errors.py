"""Every error a user of Stentor can meet, in one tree.

    StentorError
    ├── InvalidArgument          the call itself is wrong (a name, a number, a type)
    │   ├── SchemaRefused        the topic does not accept this schema or these rows
    │   ├── TopicReserved        the topic is the brokers' own
    │   └── MissingPackage       an optional package is not installed (also an ImportError)
    ├── Closed                   the object was closed before or during the call
    ├── ForkDetected             a client was used in a forked process
    ├── DeadlineExceeded         no answer in time (also a TimeoutError)
    ├── ConnectionFailed         no broker could be reached, or the link broke
    ├── ProtocolError            the other side broke the rules of the protocol
    │   ├── VersionMismatch      no protocol version in common
    │   └── PeerRefused          a connection claims to be a broker of the cluster, but does not prove it
    ├── PublishError             some messages were not acknowledged (.failed)
    │   ├── ConditionFailed      a conditional change of a table was not made: a key is at another version
    │   ├── UnknownOutcome       messages were sent, but may or may not be in the log
    │   ├── SequenceError        the broker expects another batch of this producer
    │   └── ProducerNotProven    the connection may not use this producer identity
    ├── TopicNotFound / TopicExists / PartitionNotFound
    ├── KeyNotFound              the table has no such key, or has it no more
    ├── TopicReplaced            a stored position belongs to a deleted topic of the same name
    ├── OffsetOutOfRange         the log does not hold that offset (.start .end)
    ├── Compacted                a copy cannot go on from where it was: deletions behind that were compacted away
    ├── GroupNotFound / GroupInUse
    ├── StaleGeneration          a partition does not belong to this member of its group any more
    ├── MemberReplaced           another process joined a group under the same instance name
    ├── RequestError             a request was not answered; the branch is in request_errors.py
    │   ├── NoResponders         nobody serves the topic
    │   ├── HandlerFailed        the responder's handler raised an error (.error)
    │   ├── NotHandled           no handler has seen the request; it may be sent again
    │   └── ResponderLost        the responder was lost with the request; a handler may have seen it
    ├── HandlerError             a handler raised in a worker process; with the next two in work_errors.py
    ├── HandlerTimeout           a handler took longer than its time limit (also a TimeoutError)
    ├── WorkerDied               a worker process died, or could not be started
    ├── LeaseLost                a job is not this consumer's any more, or was never
    ├── SlowSubscriber           a subscription is further behind than its max_lag
    ├── DecodeFailed             a value does not fit the type of the topic
    ├── LimitExceeded            a named limit was exceeded
    │   └── MemoryFull           the broker has no memory left for memory topics and jobs; try again later
    ├── NotReady                 the broker cannot do this now; try again
    │   ├── NotHead              another broker is the head of that partition (.head .epoch)
    │   └── EndUnknown           nobody knows for certain now where the messages end (.sure_to)
    ├── StorageError             the broker's disk failed or refused
    │   ├── DiskFull             no room on disk; nothing was written, reads still work
    │   ├── OutOfDescriptors     too many open files; nothing was written, try again
    │   ├── CorruptData          bytes on disk or on the wire fail their checksum
    │   ├── LogFailed            a sync failed; this log accepts no more writes
    │   ├── DirectoryInUse       another broker uses the data directory
    │   ├── DirectoryUnusable    the data directory is missing, read-only, or not Stentor's
    │   └── FormatTooNew         a newer Stentor wrote the data directory
    ├── CoordinationError        the coordination store failed or refused
    │   ├── CoordinationUnavailable  it cannot be reached; nothing was changed; try again
    │   ├── StoreFull            it has no room for changes by clients; try again later
    │   ├── CoordinationRefused  it refused: credentials, rights, or the request itself
    │   ├── UnknownSwap          a change was sent, but may or may not be made: read it back
    │   └── LeaseExpired         the lease is gone, and its keys with it
    └── InternalError            a bug in Stentor; please report it

Each class has a stable `code` (it travels on the wire) and says whether trying again can help.
The text of an error is one sentence (what failed, on what, actual against limit) and a hint
(what to do now).
"""

from __future__ import annotations

from typing import Any

from stentor.error_root import BY_CODE as BY_CODE  # noqa: PLC0414 - exported from here
from stentor.error_root import StentorError as StentorError  # noqa: PLC0414


class InvalidArgument(StentorError, ValueError):
    """The call itself is wrong: a name, a number, a type, or two arguments that exclude each other. Nothing was
    sent.

    Correct the call. The message says what is allowed.
    """

    code = "invalid_argument"


class SchemaRefused(InvalidArgument):
    """A new schema changes more than is allowed, or rows do not fit any schema of their tabular topic.

    Add only nullable columns. For any other change, create another topic. The message names the difference.
    """

    code = "schema_refused"


class TopicReserved(InvalidArgument):
    """The topic is the brokers' own: its name begins with `_stentor.`. Clients cannot change it, nor read the messages
    of `_stentor.cursors`.

    Use another name; `stentor group describe` and `stentor cursor list` show what those messages say.
    """

    code = "topic_reserved"


class MissingPackage(InvalidArgument, ImportError):
    """This call needs an optional package that is not installed. It is also an `ImportError`.

    Install the package that the message names.
    """

    code = "missing_package"


class Closed(StentorError):
    """The client, producer, subscription or broker was closed before or during the call.

    Open a new one. To continue a read, start again at the offset where you stopped.
    """

    code = "closed"


class ForkDetected(StentorError):
    """A client was used in a forked process, where its thread does not exist.

    Connect again in the child process. The client still works in the parent process.
    """

    code = "fork_detected"


class DeadlineExceeded(StentorError, TimeoutError):
    """No answer came in time. The request may still take effect; a message does not, since one that was sent, and may
    be in the log, raises `UnknownOutcome`. It is also a `TimeoutError`.

    Try again, or allow more time with `timeout=`. Check with `stentor doctor` that the broker runs.
    """

    code = "deadline_exceeded"
    retriable = True


class ConnectionFailed(StentorError, ConnectionError):
    """No broker could be reached, or the connection broke during a call that clients do not repeat.

    Check the address, the broker and the network, then try again. Producers and subscriptions reconnect by themselves.
    """

    code = "connection_failed"
    retriable = True


class ProtocolError(StentorError):
    """The other side broke the rules of the protocol. Often it is not a Stentor broker at all.

    Check the address and the port: 7440 is for clients, 7441 for HTTP.
    """

    code = "protocol_error"


class VersionMismatch(ProtocolError):
    """Client and broker have no version of the protocol in common.

    Upgrade the older of the two.
    """

    code = "version_mismatch"


class PeerRefused(ProtocolError):
    """A connection claims to come from a broker of this cluster, but does not prove it.

    Check the coordination store and the data directory of that broker. They must belong to this cluster.
    """

    code = "peer_refused"


class PublishError(StentorError):
    """Some messages were not acknowledged. `failed` has an entry for each batch that the producer gave up, with
    topic, partition, count and error.

    Look at the errors in `failed`. Send again what failed before it was sent. For `UnknownOutcome`, see that error.
    """

    code = "publish_failed"

    @property
    def failed(self) -> list[Any]:
        """A FailedBatch for each batch that the producer gave up."""
        failed: list[Any] = self.detail.get("failed", [])
        return failed


class ConditionFailed(PublishError):
    """A conditional change of a table was not made: a key is not at the version that the change names.

    Read the key again, and decide anew.
    """

    code = "condition_failed"


class UnknownOutcome(PublishError):
    """Messages were sent, but they may or may not be in the log: no answer came, or the head changed.

    Read the partition to find out. Sending them again may duplicate them, unless the producer has an `identity`.
    """

    code = "unknown_outcome"


class SequenceError(PublishError):
    """The broker expects another batch of this producer: an earlier one is missing, or the broker forgot the producer.

    Run only one instance of a producer. Open a new producer for messages that were not acknowledged. With an
    `identity`, send the same batches in the same order.
    """

    code = "sequence_error"


class ProducerNotProven(PublishError):
    """The connection has not proved that it may send as this producer.

    Use the `identity` and the `secret` with which the producer was first opened.
    """

    code = "producer_not_proven"


class TopicNotFound(StentorError, LookupError):
    """No topic has that name, and this call does not create it.

    Create it with `client.create_topic`, or look for it with `stentor topic list`.
    """

    code = "topic_not_found"


class TopicExists(StentorError):
    """A topic with that name already exists.

    Use it, or pass `exist_ok=True`.
    """

    code = "topic_exists"


class TopicReplaced(StentorError):
    """A stored position belongs to an earlier topic of the same name, which was deleted and created again.

    Drop the stored positions of that topic, and read the new one with `start="earliest"`.
    """

    code = "topic_replaced"


class PartitionNotFound(StentorError, LookupError):
    """The topic has no partition with that number, or it was deleted.

    Partitions count from 0. `stentor topic describe` shows them.
    """

    code = "partition_not_found"


class KeyNotFound(StentorError, LookupError):
    """The table does not have this key. It may have expired, or somebody has deleted it.

    Put it again if it should be there.
    """

    code = "key_not_found"


class Compacted(StentorError):
    """A copy of a compacted topic wants to go on from an offset behind which deletions were compacted away: it would
    keep keys that were deleted.

    Fill the copy anew, from `"earliest"`. Copies of tables do so by themselves. A watch of a table that began in the
    past raises this once: forget what you have, and go on with it.
    """

    code = "compacted"


class OffsetOutOfRange(StentorError):
    """The log does not hold that offset: retention has deleted it, or the log ends before it. `start` and `end` say
    what it holds.

    Start at `start`, or at `"earliest"` or `"latest"`. Keep messages longer if a consumer needs more time.
    """

    code = "offset_out_of_range"

    @property
    def start(self) -> int | None:
        """The first offset that the log holds."""
        return self.detail.get("start")

    @property
    def end(self) -> int | None:
        """The offset after the last message that the log holds."""
        return self.detail.get("end")


class GroupNotFound(StentorError, LookupError):
    """No consumer group has that name.

    Look for it with `stentor group list`. A group begins when its first member joins.
    """

    code = "group_not_found"


class GroupInUse(StentorError):
    """The group has members, and this call needs one without.

    Stop its members first, or wait until they count as gone.
    """

    code = "group_in_use"


class StaleGeneration(StentorError):
    """A member of a group speaks for a partition that does not belong to it any more. Nothing was committed.

    Another member goes on behind the last position that was committed in time. Leave the messages to it.
    """

    code = "stale_generation"


class LeaseLost(StentorError):
    """A job is not this consumer's any more: its lease is over, it took longer than its limit, or it was settled
    before. What is said about it now changes nothing.

    Another consumer has the job, or will. If handlers take long, the client renews by itself; a process that stands
    still for longer than `lease_s` of the queue needs a longer one.
    """

    code = "lease_lost"


class MemberReplaced(StentorError):
    """Another process joined the group under the same `instance` name, and takes this one's place.

    Give every process of a group an instance name of its own.
    """

    code = "member_replaced"


class SlowSubscriber(StentorError):
    """A subscription with `on_slow="raise"` fell further behind than its `max_lag`.

    Make the handler faster, spread the work over more partitions, or choose `"catch_up"` or `"skip"`.
    """

    code = "slow_subscriber"


class DecodeFailed(StentorError, ValueError):
    """A value does not fit the type with which the topic was opened. `object` says where the message is.

    Open the topic with a type that fits, or with `on_error="skip"` or `"raw"` to continue.
    """

    code = "decode_failed"


class LimitExceeded(StentorError):
    """A named limit was exceeded, such as the size of a message or the number of topics. The message says the number
    and the limit.

    Stay below the limit. Put large data into an object store, and its address into the message.
    """

    code = "limit_exceeded"


class MemoryFull(LimitExceeded):
    """The memory that a broker has for memory topics and for the jobs of queues is used up. Nothing was written, and
    reads still work.

    Let consumers finish jobs, delete memory topics, or shorten their retention. Or raise `memory_budget_bytes` of the
    broker. Then it accepts these messages again by itself.
    """

    code = "memory_full"
    retriable = True


class NotReady(StentorError):
    """The broker cannot do this now: it is starting, the chain is changing, or the broker is cut off.

    Try again. Clients do so by themselves until the deadline. If it lasts, run `stentor doctor`.
    """

    code = "not_ready"
    retriable = True


class NotHead(NotReady):
    """Another broker accepts this partition's messages; `head` names it.

    You need not do anything: producers go to that broker by themselves.
    """

    code = "not_head"

    @property
    def head(self) -> str:
        """The id of the broker that accepts them."""
        return str(self.detail.get("head", ""))


class EndUnknown(NotReady):
    """No member of the chain knows for certain where the committed messages end. All messages before `sure_to` are
    committed.

    Bring the missing replicas back, allow more time, or read what is known with `stale="allow"`.
    """

    code = "end_unknown"

    @property
    def sure_to(self) -> int:
        """Everything below this offset is known to be committed."""
        return int(self.detail.get("sure_to", 0))


class StorageError(StentorError):
    """The broker's disk failed, or refused a request. Or rows that Spark wrote are not in the folder of a pipeline.

    Check the broker's log and the disk; of a pipeline, that all executors share the folder.
    """

    code = "storage_error"


class DiskFull(StorageError):
    """The broker's disk has no room. Nothing was written, and reads still work.

    Free some space, or shorten retention. Then the broker accepts writes again by itself.
    """

    code = "disk_full"
    retriable = True


class OutOfDescriptors(StorageError):
    """The broker has reached its limit of open files. Nothing was written.

    Raise the limit (`LimitNOFILE`), or use fewer partitions, then try again.
    """

    code = "out_of_descriptors"
    retriable = True


class CorruptData(StorageError):
    """Bytes on disk or on the wire fail their checksum. Readers never get damaged data.

    Check the disk. The hint says at which offset reading can continue, if it can. `stentor doctor` shows all damage.
    """

    code = "corrupt_data"


class LogFailed(StorageError):
    """A sync of this log failed, so it accepts no more writes.

    Check the disk and the system log. A restart does not help. The synced messages can be read: copy them to a topic
    on a sound disk. In a cluster other brokers take over by themselves: replace the disk and start this broker with an
    empty directory.
    """

    code = "log_failed"


class DirectoryInUse(StorageError):
    """Another broker uses the data directory.

    Stop that broker, or choose another directory.
    """

    code = "directory_in_use"


class DirectoryUnusable(StorageError):
    """The data directory is missing, read-only, or not a data directory of Stentor.

    Check the path and its permissions.
    """

    code = "directory_unusable"


class FormatTooNew(StorageError):
    """A newer Stentor wrote the data directory.

    Start that version, or a newer one.
    """

    code = "format_too_new"


class CoordinationError(StentorError):
    """The coordination store failed, or refused a request.

    Check etcd and the broker's log.
    """

    code = "coordination_error"


class CoordinationUnavailable(CoordinationError):
    """The coordination store cannot be reached. Nothing was changed, and messages still flow.

    Bring etcd back, then try again.
    """

    code = "coordination_unavailable"
    retriable = True


class StoreFull(CoordinationError):
    """The coordination store has no room for what clients change: topics made or altered, schemas. What is left is kept
    for changes of chains. Nothing was changed, and messages still flow.

    Try again in some minutes, when its history is compacted. If it lasts, run `stentor doctor`.
    """

    code = "store_full"
    retriable = True


class CoordinationRefused(CoordinationError):
    """The coordination store refused a request: wrong credentials, missing rights, or an invalid request.

    Check `coordination_user`, the password file and the rights of that user.
    """

    code = "coordination_refused"


class UnknownSwap(CoordinationError):
    """A change was sent to the coordination store, but it may or may not be made.

    Read it back before you try again: describe the topic.
    """

    code = "unknown_swap"


class LeaseExpired(CoordinationError):
    """A lease in the coordination store is gone, and its keys with it.

    You need not do anything: brokers make a new one by themselves.
    """

    code = "lease_expired"


class InternalError(StentorError):
    """A bug in Stentor.

    Please report it, with the message and the broker's log.
    """

    code = "internal_error"


BY_CODE[StentorError.code] = StentorError


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
