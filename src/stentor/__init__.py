"""Stentor: publish/subscribe with no single point of failure, in Python.

    import stentor

    with stentor.connect() as client:
        client.publish("orders.eu", "hello", key="42")

Names are loaded on first use, so that `import stentor` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stentor._version import __version__

if TYPE_CHECKING:
    from stentor.client.async_client import AsyncClient, connect_async
    from stentor.client.cursors import CursorInfo
    from stentor.client.group import AsyncGroup, Group
    from stentor.client.groups import GroupInfo
    from stentor.client.history import AsyncHistory, History
    from stentor.client.job import Job
    from stentor.client.message import Message, Receipt
    from stentor.client.names import AsyncNames, NameChange, Names
    from stentor.client.outcomes import FailedBatch
    from stentor.client.position import Position
    from stentor.client.positions import Last
    from stentor.client.producer import AsyncProducer, Producer
    from stentor.client.queue import AsyncQueue, Queue
    from stentor.client.queue_core import JobReceipt
    from stentor.client.queues import QueueInfo, QueuePeek
    from stentor.client.reader import Event
    from stentor.client.reply import Reply, ServiceRequest
    from stentor.client.reply_stream import AsyncReplyStream, ReplyStream
    from stentor.client.service import AsyncService, Service
    from stentor.client.subscription import AsyncSubscription, Subscription
    from stentor.client.sync_client import Client, connect
    from stentor.client.table import AsyncTable, Table
    from stentor.client.table_copy import TableChange, TableEntry
    from stentor.client.table_reload import TableResync
    from stentor.client.table_state import CopyState
    from stentor.client.table_versions import TableValues, TableVersion
    from stentor.client.table_watch import AsyncTableWatch, TableWatch
    from stentor.client.tabular import AsyncTabularTopic, TabularTopic
    from stentor.client.topic import AsyncTopic, Topic
    from stentor.client.typed import TypedMessage
    from stentor.client.typed_table import (
        AsyncTypedTable,
        AsyncTypedTableWatch,
        TypedChange,
        TypedEntry,
        TypedTable,
        TypedTableWatch,
    )
    from stentor.errors import (
        Closed,
        Compacted,
        ConditionFailed,
        ConnectionFailed,
        CoordinationError,
        CoordinationRefused,
        CoordinationUnavailable,
        CorruptData,
        DeadlineExceeded,
        DecodeFailed,
        DirectoryInUse,
        DirectoryUnusable,
        DiskFull,
        EndUnknown,
        ForkDetected,
        FormatTooNew,
        GroupInUse,
        GroupNotFound,
        InternalError,
        InvalidArgument,
        KeyNotFound,
        LeaseExpired,
        LeaseLost,
        LimitExceeded,
        LogFailed,
        MemberReplaced,
        MemoryFull,
        MissingPackage,
        NotHead,
        NotReady,
        OffsetOutOfRange,
        OutOfDescriptors,
        PartitionNotFound,
        PeerRefused,
        ProducerNotProven,
        ProtocolError,
        PublishError,
        SchemaRefused,
        SequenceError,
        SlowSubscriber,
        StaleGeneration,
        StentorError,
        StorageError,
        StoreFull,
        TopicExists,
        TopicNotFound,
        TopicReplaced,
        TopicReserved,
        UnknownOutcome,
        UnknownSwap,
        VersionMismatch,
    )
    from stentor.request_errors import HandlerFailed, NoResponders, NotHandled, RequestError, ResponderLost
    from stentor.wire.messages import BrokerInfo, BrokerState, ClientInfo, PartitionInfo, TopicInfo, TopicSettings
    from stentor.work_errors import HandlerError, HandlerTimeout, WorkerDied

_EXPORTS = {
    "stentor.client.async_client": ("AsyncClient", "connect_async"),
    "stentor.client.cursors": ("CursorInfo",),
    "stentor.client.group": ("AsyncGroup", "Group"),
    "stentor.client.groups": ("GroupInfo",),
    "stentor.client.job": ("Job",),
    "stentor.client.queue": ("AsyncQueue", "Queue"),
    "stentor.client.queue_core": ("JobReceipt",),
    "stentor.client.queues": ("QueueInfo", "QueuePeek"),
    "stentor.client.history": ("AsyncHistory", "History"),
    "stentor.client.message": ("Message", "Receipt"),
    "stentor.client.names": ("AsyncNames", "NameChange", "Names"),
    "stentor.client.outcomes": ("FailedBatch",),
    "stentor.client.position": ("Position",),
    "stentor.client.positions": ("Last",),
    "stentor.client.producer": ("AsyncProducer", "Producer"),
    "stentor.client.reader": ("Event",),
    "stentor.client.reply": ("Reply", "ServiceRequest"),
    "stentor.client.reply_stream": ("AsyncReplyStream", "ReplyStream"),
    "stentor.client.service": ("AsyncService", "Service"),
    "stentor.client.subscription": ("AsyncSubscription", "Subscription"),
    "stentor.client.sync_client": ("Client", "connect"),
    "stentor.client.table": ("AsyncTable", "Table"),
    "stentor.client.table_copy": ("TableChange", "TableEntry"),
    "stentor.client.table_reload": ("TableResync",),
    "stentor.client.table_state": ("CopyState",),
    "stentor.client.table_versions": ("TableValues", "TableVersion"),
    "stentor.client.table_watch": ("AsyncTableWatch", "TableWatch"),
    "stentor.client.tabular": ("AsyncTabularTopic", "TabularTopic"),
    "stentor.client.topic": ("AsyncTopic", "Topic"),
    "stentor.client.typed": ("TypedMessage",),
    "stentor.client.typed_table": (
        "AsyncTypedTable",
        "AsyncTypedTableWatch",
        "TypedChange",
        "TypedEntry",
        "TypedTable",
        "TypedTableWatch",
    ),
    "stentor.errors": (
        "Closed",
        "Compacted",
        "ConditionFailed",
        "ConnectionFailed",
        "CoordinationError",
        "CoordinationRefused",
        "CoordinationUnavailable",
        "CorruptData",
        "DeadlineExceeded",
        "DecodeFailed",
        "DirectoryInUse",
        "DirectoryUnusable",
        "DiskFull",
        "EndUnknown",
        "ForkDetected",
        "FormatTooNew",
        "InternalError",
        "InvalidArgument",
        "KeyNotFound",
        "LeaseExpired",
        "LeaseLost",
        "LimitExceeded",
        "LogFailed",
        "MissingPackage",
        "NotHead",
        "NotReady",
        "OffsetOutOfRange",
        "OutOfDescriptors",
        "PartitionNotFound",
        "PeerRefused",
        "ProducerNotProven",
        "ProtocolError",
        "PublishError",
        "SchemaRefused",
        "SequenceError",
        "SlowSubscriber",
        "StaleGeneration",
        "MemberReplaced",
        "MemoryFull",
        "GroupNotFound",
        "GroupInUse",
        "StentorError",
        "StoreFull",
        "StorageError",
        "TopicExists",
        "TopicNotFound",
        "TopicReplaced",
        "TopicReserved",
        "UnknownOutcome",
        "UnknownSwap",
        "VersionMismatch",
    ),
    "stentor.request_errors": ("HandlerFailed", "NoResponders", "NotHandled", "RequestError", "ResponderLost"),
    "stentor.wire.messages": (
        "BrokerInfo",
        "BrokerState",
        "ClientInfo",
        "PartitionInfo",
        "TopicInfo",
        "TopicSettings",
    ),
    "stentor.work_errors": ("HandlerError", "HandlerTimeout", "WorkerDied"),
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "AsyncClient",
    "AsyncGroup",
    "AsyncHistory",
    "AsyncNames",
    "AsyncProducer",
    "AsyncQueue",
    "AsyncReplyStream",
    "AsyncService",
    "AsyncSubscription",
    "AsyncTable",
    "AsyncTableWatch",
    "AsyncTabularTopic",
    "AsyncTopic",
    "AsyncTypedTable",
    "AsyncTypedTableWatch",
    "BrokerInfo",
    "BrokerState",
    "Client",
    "ClientInfo",
    "Closed",
    "Compacted",
    "ConditionFailed",
    "ConnectionFailed",
    "CoordinationError",
    "CoordinationRefused",
    "CoordinationUnavailable",
    "CopyState",
    "CorruptData",
    "CursorInfo",
    "DeadlineExceeded",
    "DecodeFailed",
    "DirectoryInUse",
    "DirectoryUnusable",
    "DiskFull",
    "EndUnknown",
    "Event",
    "FailedBatch",
    "ForkDetected",
    "FormatTooNew",
    "Group",
    "GroupInUse",
    "GroupInfo",
    "GroupNotFound",
    "HandlerError",
    "HandlerFailed",
    "HandlerTimeout",
    "History",
    "InternalError",
    "InvalidArgument",
    "Job",
    "JobReceipt",
    "KeyNotFound",
    "Last",
    "LeaseExpired",
    "LeaseLost",
    "LimitExceeded",
    "LogFailed",
    "MemberReplaced",
    "MemoryFull",
    "Message",
    "MissingPackage",
    "NameChange",
    "Names",
    "NoResponders",
    "NotHandled",
    "NotHead",
    "NotReady",
    "OffsetOutOfRange",
    "OutOfDescriptors",
    "PartitionInfo",
    "PartitionNotFound",
    "PeerRefused",
    "Position",
    "Producer",
    "ProducerNotProven",
    "ProtocolError",
    "PublishError",
    "Queue",
    "QueueInfo",
    "QueuePeek",
    "Receipt",
    "Reply",
    "ReplyStream",
    "RequestError",
    "ResponderLost",
    "SchemaRefused",
    "SequenceError",
    "Service",
    "ServiceRequest",
    "SlowSubscriber",
    "StaleGeneration",
    "StentorError",
    "StorageError",
    "StoreFull",
    "Subscription",
    "Table",
    "TableChange",
    "TableEntry",
    "TableResync",
    "TableValues",
    "TableVersion",
    "TableWatch",
    "TabularTopic",
    "Topic",
    "TopicExists",
    "TopicInfo",
    "TopicNotFound",
    "TopicReplaced",
    "TopicReserved",
    "TopicSettings",
    "TypedChange",
    "TypedEntry",
    "TypedMessage",
    "TypedTable",
    "TypedTableWatch",
    "UnknownOutcome",
    "UnknownSwap",
    "VersionMismatch",
    "WorkerDied",
    "__version__",
    "connect",
    "connect_async",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stentor' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
