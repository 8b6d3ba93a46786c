"""What `help()` says of clients, producers and subscriptions: arguments and examples, told once for sync and async.

Each method has its own first lines where it is defined. `explained` adds the meaning of every argument, in the order of
the signature, and an example. The same word means the same in every call, so most meanings stand here once. Examples
are those of the sync classes; for the async ones `await` and `async` are put in. A test runs all of them.
"""

from __future__ import annotations

import re
from functools import update_wrapper
from inspect import CO_VARKEYWORDS, cleandoc
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from stentor.client.examples import EXAMPLES
from stentor.client.queue_examples import QUEUE_EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound=type)
F = TypeVar("F", bound="Callable[..., Any]")

MEANINGS: Final = {
    "address": "Where the service is, as text, in any form that its callers understand.",
    "ack": """When a message counts as acknowledged: "all" (the default) when it is on the disk of every replica,
        "quorum" of a majority, "head" of the first one, "none" as soon as it is handed to the network.""",
    "amount": "What to add: a whole number, which may be negative.",
    "appended_at": """Whether to add a column with the time at which the broker appended each message.""",
    "at": """A position: "earliest", "latest", an offset, a datetime, a timedelta such as timedelta(hours=-1), or
        Last(n).""",
    "auto_commit": """Whether what is done is committed by itself. With False, call `commit()`.""",
    "back": "Whether positions may go back.",
    "batch_bytes": "How many bytes of values a batch has at most.",
    "batch_messages": "How many messages a batch has at most.",
    "broker": "The id of a broker, such as b0; `brokers()` lists them.",
    "buffer_bytes": "How much may be unacknowledged before `send` waits.",
    "compression": """How batches are compressed: "lz4" (fast), "zstd" (small), or None.""",
    "callback": "A function that takes a change: its `key`, and the key's entry as it was, `old`, and as it is, `new`.",
    "changes": "Values by key: bytes, or text, which becomes UTF-8. None removes a key.",
    "default": "What to return if the key is not there.",
    "dead": "Whether the job is not tried again, and goes to the dead-letter topic.",
    "dead_letter_topic": "Of a queue: the topic that dead jobs go to. Empty is the queue's own name and .dead.",
    "delay": "How many seconds the job rests before it is handed out. None is the rule: at once, or a growing pause.",
    "draining": "True moves the replicas away, False lets the broker take some again.",
    "end": """Where to stop, before this position: whatever `start` may be for all partitions together, or "now", what
        is committed when the call is made. None never stops.""",
    "ends": "By partition, the offset before which everything is recorded.",
    "exist_ok": "Whether a topic that exists is all right; it is left as it is.",
    "flush": """"always" acknowledges a message when it is on disk. "interval" acknowledges at once, and a power cut may
        take the last moments.""",
    "flush_interval_ms": """With flush="interval", how often the log is brought to disk.""",
    "format": """How values are encoded: "json" or "msgpack".""",
    "generation": """Which attempt this is under the identity. The same batches sent again have the same generation;
        what is new has the next one.""",
    "headers": "A mapping, or pairs of name and value. Names are text, values are bytes or text.",
    "concurrency": "How many requests to work on at a time.",
    "idempotent": """Whether the request may be handled twice. Then another responder is asked if the first one is lost
        with it.""",
    "internal": "Whether to list topics of the brokers and tools too, whose names begin with an underscore.",
    "identity": """A name under which the producer may be made again after a crash, so that the brokers recognise what
        they have.""",
    "error": "Why it failed: an exception, whose traceback goes to the dead letter, or a text.",
    "job": "A job that this queue object handed out.",
    "lease_s": "Of a queue: a consumer that is silent for so many seconds has lost its jobs.",
    "max_attempts": "Of a queue: a job that failed so often is dead.",
    "ordered_by": """Of a queue: "key", two jobs of one key are never in work at the same time. "" is no order.""",
    "prefetch": "How many jobs this consumer holds at most, those that it has not begun among them.",
    "priority": "0, the usual one, to 9, the most urgent. It counts within a partition.",
    "retry_delay_ms": "Of a queue: the pause after a first failure, in milliseconds; each further one doubles it.",
    "seconds": "How many seconds, from now on.",
    "unique": "A name that no other job may have: while it is taken, a job of the same name is not put.",
    "unique_for": "For how many seconds the name is taken, counted from when the job was put.",
    "if_absent": "Whether to set the key only if it is not there.",
    "if_version": "Make the change only if the key is at this version: that of an entry. None makes it in any case.",
    "handler": "Called with each message. What it raises ends the loop, and the message is handed out again.",
    "instance": """The name of a static member, such as its host name. A process that is started again under it within
        `silence` gets the same partitions, and nothing moves.""",
    "keep_unrecorded": "Whether retention keeps what no recorder has marked as recorded.",
    "key": """Bytes or text. Messages of one key go to one partition and keep their order. None spreads messages over
        all partitions.""",
    "cleanup": """What becomes of old messages: "delete", retention deletes them; "compact", the latest message of each
        key stays; "compact,delete", both. A table is compacted in any case. It cannot be changed later.""",
    "durability": """"disk", or "memory": messages are never written, only the newest are kept, and all are lost when
        every broker that holds them was restarted. It cannot be changed later.""",
    "deletions_kept_s": "How long a compacted topic keeps messages that delete a key, in seconds.",
    "kind": """"stream", every message counts; "queue", each message is a job for one consumer; or "table", the latest
        value of each key counts, and retention deletes nothing. It cannot be changed later.""",
    "keys": "As many keys as values; None if no message has one.",
    "limit": "How many messages to read at most. None reads all.",
    "max_lag": """How far behind is too slow: a number of messages, a timedelta, or both as a pair, whichever comes
        first. Every `on_slow` but "catch_up" needs it.""",
    "min_replicas": "With fewer replicas a partition takes no messages. 0 means a majority.",
    "name": "What operators see. Without it, the names of program and host, and the process id.",
    "on_delivery": """Called with (receipt, error) when the message is acknowledged or given up; one of them is None. It
        runs in the client's thread: keep it short.""",
    "on_error": """What becomes of a value that does not fit the type: "raise" DecodeFailed, "skip" the message, or hand
        its bytes out "raw".""",
    "on_slow": """What to do past `max_lag`: "catch_up" reads on from the log, "raise" raises SlowSubscriber, "skip"
        jumps to now and says in `events()` what it skipped, "disconnect" ends the subscription.""",
    "partition": "The number of a partition; the first is 0. None leaves the choice to the key.",
    "partitioner": """Chooses the partition: a function of a message's key and the number of partitions. See
        stentor.selectors, for example selectors.round_robin().""",
    "partitions": "How many partitions. It cannot be changed later, because keys would move.",
    "pattern": """Topics to list: `*` is one segment of a name, a final `>` is the rest. None lists all.""",
    "positions": "By partition, the offset before which everything is done with.",
    "placement": """Which brokers lead: "spread" (all of them), "active-passive" (one leads everything), or
        "multi-primary" (each leads one partition).""",
    "read_from": "Chooses whom of a partition's replicas to read from; see stentor.selectors.",
    "replicas": "Number of copies, each on its own broker. 0 means three, or fewer if the cluster is smaller.",
    "retention_age_s": "Messages may be deleted when they are older than this many seconds. None keeps them.",
    "retention_bytes": "The oldest messages of a partition beyond this size may be deleted. None keeps them.",
    "retention_wait_bytes": """Messages of a partition that wait for a cursor beyond this size are deleted all the same,
        the oldest first. None keeps them all.""",
    "retention_waits_for": """The name of a cursor: retention deletes only what it has passed. "" waits for none.""",
    "schema": "A pyarrow.Schema with the columns. None takes the newest that the topic has.",
    "secret": """What only those know who may send under the identity. Without it, $STENTOR_PRODUCER_SECRET, which must
        then be set.""",
    "segment_bytes": "Size of a segment file; retention deletes whole ones.",
    "sequence": "How far: the `sequence` of a copy of the same table, perhaps in another process.",
    "stale": """"refuse" waits until a broker is certain where the committed messages end. "allow" takes what is known
        to be committed.""",
    "time_limit": """How many seconds one message may be in work. A member that needs longer leaves its group, so that
        others get its partitions. None sets no limit.""",
    "on_assigned": """Called with an Event for each partition that comes to this member, before its first message. In a
        thread of its own; for async code in the loop, where it may be a coroutine function.""",
    "on_revoked": """Called with an Event for each partition that goes from this member: "revoked" while what is
        finished can be committed yet, "lost" when it may belong to another member already.""",
    "zone": "Where this process runs, such as eu-1a. Partitions are then spread evenly over zones, too.",
    "silence": "After how many seconds of silence this process counts as gone, although its connection is open.",
    "start": """Where to start: "earliest", "latest", an offset, a datetime, a timedelta such as timedelta(hours=-1), or
        Last(n); by partition {0: 17, 2: 5}; by topic {"orders.eu": {0: 17}}; a message's `position`; or what
        `subscription.positions()` gave. Partitions that are not named are read from their beginning.""",
    "subtree": "A path that ends with a slash, such as app/limits/. Empty, it is the whole table.",
    "timeout": "How many seconds the call may take. None takes the client's own timeout.",
    "timestamp": "When it happened: a datetime, or microseconds since 1970. None is now.",
    "tracing": """Whether to make OpenTelemetry spans and to send the trace context in message headers: True, or the
        TracerProvider to use. It needs the package opentelemetry-api.""",
    "topic": "The topic's name, dotted segments such as orders.eu.",
    "to": """A position: "earliest", "latest", an offset, a datetime, a timedelta such as timedelta(hours=-1), or
        Last(n).""",
    "topics": """A topic or pattern, or a list of them: `*` is one segment of a name, a final `>` is the rest.""",
    "type": """The type of the values: a msgspec Struct, a dataclass or a pydantic model. None leaves them bytes.""",
    "url": """Where brokers are: stentor://host:port, host:port, or several separated by commas. Without it
        $STENTOR_URL, else localhost.""",
    "value": "Bytes, or text, which becomes UTF-8. None is a message without a value.",
    "values": "A list of bytes.",
    "ttl": "The key expires so many seconds after it was last put or touched. None: it stays.",
    "ephemeral": "The key belongs to this object, and goes when that is closed or its client is gone.",
    "grace": "So many seconds after the brokers last heard the client, an ephemeral key goes. Ten unless given.",
    "wait": "How many seconds to wait until somebody registers. None does not wait.",
    "data": "A pyarrow Table or RecordBatch with a column `value`, and key, timestamp and headers if you like.",
}  # fmt: skip
"""The meaning of an argument wherever its name occurs."""

_TABLE_KEY: Final = "A path such as app/limits/rate: words with slashes between them."

_QUEUE_WAIT: Final = "Whether to wait until it is committed. With False it is sent soon, together with others."
OWN_MEANINGS: Final = {
    "Client.alter_topic": {"name": "The topic's name."},
    "Client.create_topic": {"name": "The topic's name, dotted segments such as orders.eu."},
    "Client.delete_cursor": {"name": "The cursor's name."},
    "Client.delete_topic": {"name": "The topic's name."},
    "Client.describe_topic": {"name": "The topic's name."},
    "Client.find_topic": {"name": "The topic's name."},
    "Client.table": {
        "name": "The table's name.",
        "subtree": """The keys to copy: a path that ends with a slash, such as app/limits/. Brokers send no others.
        Empty, it is the whole table.""",
        "timeout": """How many seconds it may take until the copy has the whole table. None takes the client's own
        timeout.""",
    },
    "Client.tabular": {"name": "The topic's name."},
    "Client.topic": {"name": "The topic's name."},
    "Client.delete_group": {"name": "The group's name."},
    "Client.describe_group": {"name": "The group's name."},
    "Client.reset_group": {
        "name": "The group's name.",
        "like": "The name of another group, whose positions are taken over.",
        "topics": "The topics whose positions change. None changes those of all topics of the group.",
    },
    "Client.group": {
        "name": "The name of the group, such as billing. Its positions are the cursors of this name.",
        "start": """Where a new group starts: "earliest", "latest", an offset, a datetime, a timedelta such as
        timedelta(hours=-1), or Last(n).""",
    },
    "Client.request": {"value": "What to ask: bytes, or text, which becomes UTF-8."},
    "Client.request_stream": {
        "value": "What to ask: bytes, or text, which becomes UTF-8.",
        "timeout": "How many seconds the whole answer may take. None takes the client's own timeout.",
    },
    "Client.serve": {
        "topic": "The topic whose requests to answer. It is only a name: no topic is made.",
        "handler": "Called with each ServiceRequest. It returns the answer, or yields its parts.",
    },
    "Service.close": {"timeout": "How many seconds to wait for what was begun. None takes the client's own timeout."},
    "Service.wait": {"timeout": "How many seconds to wait. None waits for ever."},
    "Client.find_offsets": {"topics": "A list of topics and patterns."},
    "Client.move_cursor": {"name": "The cursor's name, such as recorder; it is made if it is new."},
    "Client.producer": {"timeout": "How many seconds a message may take to be acknowledged before it is given up."},
    "Client.read": {"partition": "A partition, or several such as [0, 2]. None reads all."},
    "Client.recover_partition": {
        "partition": "The number of the partition.",
        "broker": "The broker whose copy shall lead. None takes the copy that is furthest.",
    },
    "Client.subscribe": {"partition": "A partition, or several such as [0, 2]. None reads all."},
    "connect": {"timeout": "How many seconds each call may take that names no timeout of its own."},
    "Names.register": {
        "name": "A path such as billing/1: the service, and which one of it.",
        "ephemeral": "False keeps the name until it is unregistered.",
        "grace": "So many seconds after the brokers last heard the client, the name goes. Ten unless given.",
    },
    "Names.resolve": {"name": "A service such as billing, or one of it such as billing/1."},
    "Names.resolve_all": {"name": "A service such as billing. Empty, it is all."},
    "Names.unregister": {"name": "A path such as billing/1."},
    "Names.watch": {"name": "A service such as billing. Empty, it is all."},
    "Group.commit": {"wait": "False returns at once, and the commit follows."},
    "Group.pause": {"topic": "Only in this topic. None pauses all.", "partition": "Only this one. None pauses all."},
    "Group.resume": {"topic": "Only in this topic. None resumes all.", "partition": "Only this one. None resumes all."},
    "Group.run": {
        "handler": """A function that takes a message, or a list of them with `batch`; or its name as module:function.
        Processes need one that can be imported.""",
        "workers": "How many messages may be in work at the same time.",
        "mode": """Where handlers run: "thread", "process", or "async" for tasks of an event loop. None takes threads,
        or tasks for an async handler and in async code.""",
        "ordered_by": """What keeps its order: "partition", "key" (messages of one key are never in work at the same
        time), or None.""",
        "batch": "Call the handler with lists of up to this many messages of one partition. None calls it with each.",
        "on_error": """What to do when a handler fails: "raise", which ends the run, or "skip" the message.""",
        "dead_letters": """A topic for messages whose handler failed, with the reason in headers; then no error ends the
        run.""",
        "attempts": "How often a message may kill its worker process before it counts as failed.",
        "time_limit": """How many seconds a handler may take. A process that takes longer is killed, and its message
        tried again; otherwise this member leaves its group. None takes the limit of the group.""",
        "finish_within": "How many seconds handlers may finish when the run ends. Their messages go back then.",
    },
    "Group.seek": {"partition": "The number of the partition."},
    "Group.get": {"timeout": "How many seconds to wait for a message. None waits for ever."},
    "Producer.flush": {"timeout": "How many seconds to wait. None takes the producer's own timeout."},
    "Producer.send_batch": {
        "on_delivery": """Called once for each batch that the data becomes, with (receipt, error); the receipt is that
        of its first message.""",
        "partition": "The number of a partition. None spreads the rows by their keys.",
    },
    "Subscription.get": {"timeout": "How many seconds to wait for a message. None waits for ever."},
    "Table.add": {"key": _TABLE_KEY},
    "Table.delete": {"key": _TABLE_KEY},
    "Table.entry": {"key": _TABLE_KEY},
    "Table.get": {"key": _TABLE_KEY},
    "Table.confirm": {"key": _TABLE_KEY},
    "Table.holds": {"key": _TABLE_KEY},
    "Table.get_many": {"keys": "A list of keys."},
    "Table.history": {"key": _TABLE_KEY, "limit": "How many versions to return at most. None returns all."},
    "Table.on_resync": {
        "callback": "A function that takes a TableResync: how far the copy was, how far it is, how many keys differ."
    },
    "Client.queue": {
        "limit": "How many seconds the work on one job may take; then it is another's. None is no limit.",
        "name": "The name of the queue.",
    },
    "Queue.put": {
        "at": "When the job is due: a datetime, or microseconds since 1970. None is now.",
        "delay": "How many seconds after it is put the job is due. None is at once.",
        "ttl": "After so many seconds a job that nobody began is dead. None gives it all the time.",
    },
    "Queue.put_many": {
        "at": "When the jobs are due: a datetime, or microseconds since 1970. None is now.",
        "delay": "How many seconds after they are put the jobs are due. None is at once.",
        "ttl": "After so many seconds a job that nobody began is dead. None gives it all the time.",
        "values": "A list of bytes or text, one for each job.",
    },
    "Queue.get": {"timeout": "How many seconds to wait for a job. None waits for ever."},
    "Queue.run": {
        "handler": """A function that takes a job, or a list of them with `batch`; or its name as module:function.
        Processes need one that can be imported. If it raises, the job has failed, and the next one follows.""",
        "workers": "How many jobs may be in work at the same time. One is handled by the thread that calls.",
        "mode": """Where handlers run: "thread", "process", or "async" for tasks of an event loop. None takes threads,
        or tasks for an async handler and in async code.""",
        "batch": """Call the handler with lists of up to this many jobs of one partition, and of no more than
        `prefetch`. None calls it with each.""",
        "time_limit": """How many seconds a handler may take. Then its attempt has failed, and another worker takes its
        place: a process is killed, a task cancelled, a thread left alone. None takes `limit` of the queue.""",
        "finish_within": "How many seconds handlers may finish when the run ends. Their jobs go back then.",
    },
    "Queue.ack": {"wait": _QUEUE_WAIT},
    "Queue.nack": {"wait": _QUEUE_WAIT},
    "Queue.redrive": {"limit": "How many dead letters to put back at most. None is all of them."},
    "Queue.peek": {"limit": "How many jobs to return at most."},
    "Table.put": {"key": _TABLE_KEY, "value": "Bytes, or text, which becomes UTF-8."},
    "Table.watch": {
        "limit": """How many changes may wait to be taken. It bounds the memory that a slow watcher takes.""",
        "on_slow": """What to do beyond the limit: "merge" the changes of each key into one, whose `skipped` says how
        many more it includes, or "raise" SlowSubscriber, which ends the watch.""",
        "start": "Where to begin: a `sequence` of the table or of a watch. None begins now.",
    },
    "TableWatch.get": {"timeout": "How many seconds to wait for a change. None waits for ever."},
    "Table.touch": {"key": _TABLE_KEY},
}
"""The meaning of an argument where it is another one."""

_SETTINGS: Final = (
    "partitions", "kind", "cleanup", "deletions_kept_s", "durability", "flush", "flush_interval_ms",
    "replicas", "min_replicas", "placement", "retention_age_s",
    "retention_bytes", "keep_unrecorded", "retention_waits_for", "retention_wait_bytes", "segment_bytes",
    "ordered_by", "max_attempts", "lease_s", "retry_delay_ms", "dead_letter_topic",
)  # fmt: skip

OPTIONS: Final = {
    "Client.alter_topic": _SETTINGS[2:],
    "Client.create_topic": _SETTINGS,
    "Client.producer": (
        "ack", "compression", "batch_messages", "batch_bytes", "buffer_bytes", "timeout", "partitioner", "identity",
        "secret", "generation",
    ),
    "Client.group": (
        "start", "instance", "auto_commit", "silence", "time_limit", "zone", "on_assigned", "on_revoked", "timeout",
    ),
    "Client.subscribe": ("start", "end", "partition", "on_slow", "max_lag", "stale", "timeout"),
}  # fmt: skip
"""What a call takes behind its `**`."""

PLAIN: Final = {
    "client.request_stream", "client.topic", "group.batches", "group.events", "group.lag", "group.positions",
    "group.statistics", "group.stop", "group.transaction", "queue.statistics", "queue.stop",
    "producer.statistics", "subscription.batches", "subscription.events", "subscription.offset_batches",
    "subscription.positions", "subscription.statistics", "history.batches", "history.offset_batches",
    "table.entries", "table.entry", "table.get", "table.get_many", "table.holds", "table.items", "table.keys",
    "table.on_change", "table.on_resync", "table.to_arrow", "table.to_pandas", "table.values", "table.watch",
}  # fmt: skip
"""Calls of async objects that are not awaited."""

_ENTERED: Final = re.compile(r"^( *)with ", re.MULTILINE)
_ITERATED: Final = re.compile(
    r"^( *)for ([\w, ]+) in (subscription|group|queue|history|client|watch)(?!\.events)\b", re.MULTILINE
)
_CALLED: Final = re.compile(
    r"(?<![\w.])(?<!with )(?<! in )((?:client|producer|subscription|group|queue|history|table|names|watch|out)\.\w+)\("
)


def awaited(example: str) -> str:
    """An example of the sync API as one of the async API."""
    example = _ENTERED.sub(r"\1async with ", example.replace("stentor.connect(", "stentor.connect_async("))
    example = _ITERATED.sub(r"\1async for \2 in \3", example)
    return _CALLED.sub(lambda call: f"{'' if call[1] in PLAIN else 'await '}{call[0]}", example)


def arguments(function: FunctionType, place: str) -> list[str]:
    """The names of all arguments that a function takes, also behind `**`."""
    code = function.__code__
    names = [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
    if code.co_flags & CO_VARKEYWORDS:
        names += OPTIONS.get(place, ())
    return [name for name in names if name not in ("self", "cls")]


def _explain(function: Any, place: str, *, asynchronous: bool) -> None:
    """Add arguments and example to what a function says of itself."""
    if not function.__doc__:
        return  # Python was told to keep no such texts
    parts = [cleandoc(function.__doc__)]
    meanings = MEANINGS | OWN_MEANINGS.get(place, {})
    told = [f"    {name}: {meanings[name]}" for name in arguments(function, place) if name in meanings]
    if told:
        parts.append("\n".join(["Args:", *told]))
    example = EXAMPLES.get(place) or QUEUE_EXAMPLES.get(place)
    if example is not None:
        lines = (awaited(example) if asynchronous else example).splitlines()
        parts.append("\n".join(["Example:", *(f"    {line}".rstrip() for line in lines)]))
    function.__doc__ = "\n\n".join(parts)


def _copy(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return update_wrapper(copy, function)  # type: ignore[return-value]


def explained(kind: str, *, asynchronous: bool = False) -> Callable[[C], C]:
    """A class whose public methods say everything about themselves; `kind` is the name of its sync form."""

    def explain(cls: C) -> C:
        for name in dir(cls):
            member = getattr(cls, name)
            if name.startswith("_") or not isinstance(member, FunctionType):
                continue
            if name not in vars(cls):  # shared by both forms, which tell it each in its way
                member = _copy(member)
                setattr(cls, name, member)
            _explain(member, f"{kind}.{name}", asynchronous=asynchronous)
        return cls

    return explain


def explained_function(place: str, *, asynchronous: bool = False) -> Callable[[F], F]:
    """The same for a function."""

    def explain(function: F) -> F:
        _explain(function, place, asynchronous=asynchronous)
        return function

    return explain
