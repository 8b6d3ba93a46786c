"""The options of the data source, by the names that users of Spark's Kafka source know; see docs/spark.md."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from stentor.client.convert import allows_stale
from stentor.client.options import Compression
from stentor.client.positions import Stale
from stentor.client.table_keys import check_subtree
from stentor.core.names import check_group_name, check_pattern, check_topic_name
from stentor.errors import InvalidArgument
from stentor.spark import columns
from stentor.spark.connections import SparkConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = -2
LATEST: Final = -1
"""As in Spark's Kafka source: what an offset in JSON may be besides a number."""

_CONNECTION: Final = ("url", "timeout", "zone")
_READ: Final = (
    *_CONNECTION,
    "subscribe",
    "subscribePattern",
    "assign",
    "table",
    "subtree",
    "sequence",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "groupId",
    "stale",
    "includeHeaders",
    "columns",
)
_WRITE: Final = (
    *_CONNECTION,
    "topic",
    "table",
    "columns",
    "keyColumn",
    "exactlyOnce",
    "applicationId",
    "txnAppId",
    "txnVersion",
    "dropRepeated",
    "compression",
)
_OF_PARTS_OF_A_LOG: Final = ("startingOffsets", "startingTimestamp", "minPartitions", "maxRecordsPerPartition")
_OF_SPARK: Final = ("path", "checkpointlocation", "queryname", "outputmode")
"""Options that Spark itself adds or understands."""
_TABLE_OPTION: Final = "option."
"""How Spark calls the options of CREATE TABLE, which it mixes with properties of its own and of the user."""
_KAFKA_NAMES: Final = {
    "kafka.bootstrap.servers": "url",
    "bootstrap.servers": "url",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "groupidprefix": "",
    "kafka.group.id": "groupId",
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?\Z")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}

RECORDS_PER_PARTITION_DEFAULT: Final = 1_000_000

Given = dict[str, dict[int, int]]
"""Offsets as a user names them: some partitions of some topics."""


class SparkReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a read is asked for."""

    connection: SparkConnection
    topics: list[str] = []  # names and patterns
    topic_regex: str | None = None
    topic_ids: dict[str, int] = {}  # what the offsets given are of
    partitions: dict[str, list[int]] | None = None  # assign
    start: str | Given | datetime = "latest"
    end: str | Given | datetime = "latest"
    rows_per_trigger_max: int | None = None
    rows_per_trigger_min: int | None = None
    trigger_delay_s: float = 900.0
    partitions_min: int | None = None
    rows_per_partition_max: int = RECORDS_PER_PARTITION_DEFAULT
    fail_on_data_loss: bool = True
    stale: Stale = "refuse"
    columns: tuple[str, ...] = columns.DEFAULT
    table: str | None = None  # its rows are read by key, not as messages
    subtree: str = ""  # of the table
    sequence: tuple[int, ...] | None = None  # of the table, at which a snapshot is taken
    group: str = ""  # a stream tells its progress as this group's positions


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a write is asked for."""

    connection: SparkConnection
    topic: str | None = None
    is_table: bool = False  # rows set and delete keys of it
    is_typed: bool = False  # rows have the columns of the topic's schema
    key_column: str | None = None  # of such rows
    exactly_once: bool = True
    application: str | None = None
    version: int | None = None  # of a batch write that may be repeated
    drop_repeated: bool = False  # epochs that may have other rows than before
    checkpoint: str = ""  # of a stream, if its options name it
    compression: Compression | None = None


# --- tables -------------------------------------------------------------------------------------


def is_table(given: Mapping[str, str]) -> bool:
    """Whether these come from CREATE TABLE; only then Spark names the provider."""
    return any(name.lower() == "provider" for name in given)


def table_options(given: Mapping[str, str]) -> dict[str, str]:
    """What the user of CREATE TABLE has said, checked: options to read and to write."""
    found = {
        name.lower().removeprefix(_TABLE_OPTION): value
        for name, value in given.items()
        if name.lower().startswith(_TABLE_OPTION)
    }
    _Options(found, tuple(dict.fromkeys((*_READ, *_WRITE))), "read and write")
    read_options(to_read(found), streaming=False)
    if "topic" in found or "table" in found:
        chosen = _of(found, _WRITE)
        if chosen.get("columns") != columns.TYPED:
            chosen.pop("columns", None)  # those that are read
        write_options(chosen, streaming=False)
    return found


def to_read(options: Mapping[str, str]) -> dict[str, str]:
    """Those of a table that matter to who reads it; a table that names only where it is written is read from there."""
    found = _of(options, _READ)
    if "topic" in options and not names_topics(found):
        found["subscribe"] = options["topic"]
    return found


def names_topics(given: Mapping[str, str]) -> bool:
    """Whether options of a read say what is read."""
    return not {name.lower() for name in given}.isdisjoint(("subscribe", "subscribepattern", "assign", "path", "table"))


def _of(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    known = {name.lower() for name in names}
    return {name: value for name, value in options.items() if name in known}


# --- reading ------------------------------------------------------------------------------------


def read_options(given: Mapping[str, str], *, streaming: bool) -> SparkReadOptions:
    """Options of a read; InvalidArgument says which is wrong, and how."""
    options = _Options(given, _READ, "read")
    topics, regex, assigned = _topics(options)
    start = _position(options, "starting", "latest" if streaming else "earliest")
    end = _position(options, "ending", "latest")
    if streaming and (options.has("endingOffsets") or options.has("endingTimestamp")):
        raise InvalidArgument(
            "A stream cannot have an end.", hint="Leave endingOffsets and endingTimestamp out, or use read."
        )
    if end == "earliest" or (start == "latest" and not streaming):
        raise InvalidArgument("A batch read from latest, or to earliest, is empty.", hint="Choose other offsets.")
    table, sequence = _table(options, streaming=streaming)
    return SparkReadOptions(
        connection=_connection(options, patient=streaming),
        topics=topics,
        topic_regex=regex,
        partitions=assigned,
        topic_ids=_topic_ids(options),
        start=start,
        end=end,
        rows_per_trigger_max=options.count("maxOffsetsPerTrigger"),
        rows_per_trigger_min=options.count("minOffsetsPerTrigger"),
        trigger_delay_s=options.seconds("maxTriggerDelay", 900.0),
        partitions_min=options.count("minPartitions"),
        rows_per_partition_max=options.count("maxRecordsPerPartition") or RECORDS_PER_PARTITION_DEFAULT,
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        stale=_stale(options, streaming=streaming),
        columns=_columns(options),
        table=table,
        subtree=check_subtree(options.text("subtree")),
        sequence=sequence,
        group=_group(options, streaming=streaming),
    )


def _group(options: _Options, *, streaming: bool) -> str:
    """The group whose positions show how far a stream is."""
    name = options.text("groupId").strip()
    if name and not streaming:
        raise InvalidArgument("groupId is for streams.", hint="Leave it out: a batch read commits nothing.")
    return check_group_name(name) if name else ""


def _table(options: _Options, *, streaming: bool) -> tuple[str | None, tuple[int, ...] | None]:
    """The table that is read, and the sequence of it; what makes no sense for a table is refused."""
    if not options.has("table"):
        for name in ("subtree", "sequence"):
            if options.has(name):
                raise InvalidArgument(f"{name} is for tables.", hint="Name one: .option('table', 'shop.config').")
        return None, None
    if streaming:
        if options.has("sequence"):
            raise InvalidArgument(
                "A stream of a table has no sequence: it has all changes.",
                hint="Leave it out, or choose startingOffsets.",
            )
        return options.text("table"), None
    for name in _OF_PARTS_OF_A_LOG:
        if options.has(name):
            raise InvalidArgument(
                f"{name} is not for snapshots of a table.",
                hint="Leave it out: a snapshot reads each partition of the table from its beginning, in one task.",
            )
    return options.text("table"), _sequence(options)


def _sequence(options: _Options) -> tuple[int, ...] | None:
    if not options.has("sequence"):
        return None
    if options.has("endingOffsets") or options.has("endingTimestamp"):
        raise InvalidArgument("sequence says where a snapshot ends.", hint="Leave out the other option that does.")
    parts = [part.strip() for part in options.text("sequence").strip().strip("()[]").split(",")]
    parts = parts[:-1] if parts[-1] == "" else parts  # as Python shows a tuple of one
    if not parts or not all(part.isdigit() for part in parts):
        raise InvalidArgument(
            f"sequence={options.text('sequence')!r} is not a sequence of a table.",
            hint="Use the offset of each partition, such as 120,98: str(table.sequence).",
        )
    return tuple(map(int, parts))


def _stale(options: _Options, *, streaming: bool) -> Stale:
    """A stream that ends a micro-batch too early has the rest in the next one: it needs no such choice."""
    if streaming and options.has("stale"):
        raise InvalidArgument(
            "stale is for batch reads.", hint="Leave it out: a stream waits until the end is certain."
        )
    return "allow" if allows_stale(options.text("stale", "refuse").strip().lower()) else "refuse"


def read_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns alone: Spark asks for the schema before it says whether this is a stream."""
    return _columns(_Options(given, _READ, "read"))


def topic_options(given: Mapping[str, str]) -> SparkReadOptions:
    """Where the topics are, which they are, and what columns are wanted: what a schema depends on."""
    options = _Options(given, _READ, "read")
    topics, regex, assigned = _topics(options)
    return SparkReadOptions(
        connection=_connection(options, patient=False),
        topics=topics,
        topic_regex=regex,
        partitions=assigned,
        columns=_columns(options),
    )


def _topics(options: _Options) -> tuple[list[str], str | None, dict[str, list[int]] | None]:
    named = [name for name in ("subscribe", "subscribePattern", "assign", "table", "path") if options.has(name)]
    if len(named) != 1:
        raise InvalidArgument(
            "Exactly one of subscribe, subscribePattern, assign and table is needed, not"
            f" {' and '.join(named) or 'none'}.",
            hint="For example .option('subscribe', 'orders.*'), or load('orders'). CREATE TABLE takes them as OPTIONS,"
            " if it lists no columns: name those in the option columns.",
        )
    text = options.text(named[0])
    if named[0] == "subscribePattern":
        return [], _regex(text), None
    if named[0] == "table":
        check_topic_name(text)
        return [text], None, None
    if named[0] == "assign":
        assigned = _assigned(text)
        return sorted(assigned), None, assigned
    topics = [part.strip() for part in text.split(",") if part.strip()]
    for topic in topics:
        check_pattern(topic)
    if not topics:
        raise InvalidArgument(f"{named[0]} names no topic.", hint="For example .option('subscribe', 'orders.eu').")
    return topics, None, None


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidArgument(f"subscribePattern={text!r} is not a regular expression: {error}.") from error
    return text


def _assigned(text: str) -> dict[str, list[int]]:
    try:
        return msgspec.json.decode(text, type=dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"assign={text!r} is not a list of partitions per topic.", hint="""For example {"orders": [0, 1]}."""
        ) from error


def _position(options: _Options, which: str, default: str) -> str | Given | datetime:
    offsets, moment = f"{which}Offsets", f"{which}Timestamp"
    if options.has(offsets) and options.has(moment):
        raise InvalidArgument(f"{offsets} and {moment} exclude each other.", hint="Keep one of them.")
    if options.has(moment):
        return _moment(options.text(moment), moment)
    text = options.text(offsets, default).strip()
    if text in ("earliest", "latest"):
        return text
    try:
        given = _given(text)
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            f"{offsets}={text!r} is not a position.",
            hint="""Use earliest, latest, or JSON such as {"orders": {"0": 23, "1": -2}} (-2: earliest, -1: latest).""",
        ) from error
    if any(offset < EARLIEST for partitions in given.values() for offset in partitions.values()):
        raise InvalidArgument(f"{offsets} has a negative offset.", hint="Only -2 (earliest) and -1 (latest) are.")
    return given


def _given(text: str) -> Given:
    """Offsets per topic and partition; also in the form that a query's progress shows, with the topics' ids."""
    topics = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    plain = {name: topic.get("offsets", topic) for name, topic in topics.items()}
    return msgspec.convert(plain, Given, strict=False)


def _topic_ids(options: _Options) -> dict[str, int]:
    """Which topics the offsets are of, where they say so."""
    text = options.text("startingOffsets", "").strip()
    if not text.startswith("{"):
        return {}
    topics = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    return {name: int(topic["id"], 16) for name, topic in topics.items() if "id" in topic}


def _moment(text: str, name: str) -> datetime:
    """Milliseconds since 1970, as in Spark's Kafka source, or an ISO date and time."""
    try:
        if text.strip().isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"{name}={text!r} is not a time.", hint="Use milliseconds since 1970, or 2026-11-15T12:00:00+00:00."
        ) from error
    return moment if moment.tzinfo else moment.astimezone()


def _columns(options: _Options) -> tuple[str, ...]:
    if options.has("table"):
        return _table_columns(options)
    if not options.has("columns"):
        return (*columns.DEFAULT, "headers") if options.flag("includeHeaders", default=False) else columns.DEFAULT
    if options.has("includeHeaders"):
        raise InvalidArgument("columns and includeHeaders exclude each other.", hint="Name headers among the columns.")
    names = tuple(part.strip() for part in options.text("columns").split(",") if part.strip())
    if names == (columns.TYPED,):
        return names
    unknown = [name for name in names if name not in columns.TYPES]
    if unknown or not names or len(set(names)) < len(names):
        raise InvalidArgument(
            f"columns={options.text('columns')!r} is not a list of columns of a topic.",
            hint=f"Choose from {', '.join(columns.TYPES)}, each once; or {columns.TYPED}, for those of its schema.",
        )
    return names


def _table_columns(options: _Options) -> tuple[str, ...]:
    if options.has("includeHeaders"):
        raise InvalidArgument("Rows of a table have no headers.", hint="Leave includeHeaders out.")
    if not options.has("columns"):
        return columns.TABLE_DEFAULT
    names = tuple(part.strip() for part in options.text("columns").split(",") if part.strip())
    if not names or not set(names) <= columns.TABLE_TYPES.keys() or len(set(names)) < len(names):
        raise InvalidArgument(
            f"columns={options.text('columns')!r} is not a list of columns of a table.",
            hint=f"Choose from {', '.join(columns.TABLE_TYPES)}, each once.",
        )
    return names


# --- writing ------------------------------------------------------------------------------------


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Options of a write."""
    options = _Options(given, _WRITE, "write")
    topic = options.text("topic", options.text("path", "")) or None
    if options.has("table"):
        if topic is not None:
            raise InvalidArgument("topic and table exclude each other.", hint="Keep the one that is written to.")
        topic = options.text("table")
    if topic is not None:
        check_topic_name(topic)
    if streaming and (options.has("txnAppId") or options.has("txnVersion")):
        raise InvalidArgument("txnAppId and txnVersion are for batch writes.", hint="A stream takes applicationId.")
    if not streaming and options.has("applicationId"):
        raise InvalidArgument("applicationId is for streams.", hint="A batch write takes txnAppId and txnVersion.")
    if options.has("txnAppId") != options.has("txnVersion"):
        raise InvalidArgument("txnAppId and txnVersion belong together.", hint="Set both, or none.")
    exactly_once = options.flag("exactlyOnce", default=streaming or options.has("txnAppId"))
    if not streaming and exactly_once != options.has("txnAppId"):
        raise InvalidArgument(
            "A batch write is exactly once only with txnAppId and txnVersion.",
            hint="Set both of them, or leave exactlyOnce out.",
        )
    application = options.text("applicationId", options.text("txnAppId", "")) or None
    if application is not None:
        check_topic_name(f"_spark.{application}")
    return WriteOptions(
        connection=_connection(options, patient=exactly_once),
        topic=topic,
        is_table=options.has("table"),
        is_typed=_is_typed(options, topic),
        key_column=options.text("keyColumn") or None,
        exactly_once=exactly_once,
        application=application,
        version=options.number("txnVersion"),
        drop_repeated=options.flag("dropRepeated", default=False),
        checkpoint=options.text("checkpointLocation") if streaming else "",
        compression=cast("Compression | None", options.text("compression", "") or None),
    )


def _is_typed(options: _Options, topic: str | None) -> bool:
    """Whether rows have the columns of a topic's own schema."""
    if not options.has("columns"):
        if options.has("keyColumn"):
            raise InvalidArgument("keyColumn is for columns=typed.", hint="Call the column `key`, and leave it out.")
        return False
    if options.text("columns").strip() != columns.TYPED:
        raise InvalidArgument(
            f"columns={options.text('columns')!r} is for reads.", hint=f"A write takes columns={columns.TYPED} or none."
        )
    if topic is None or options.has("table"):
        raise InvalidArgument("columns=typed writes to one topic.", hint="Name it in the option topic.")
    return True


# --- all of them --------------------------------------------------------------------------------


class _Options:
    """Options as Spark hands them over: text, by names whose case does not matter."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        lower = {name.lower(): name for name in known}
        for name in self._values:
            if name not in lower and name not in _OF_SPARK:
                raise _unknown(name, lower, what)

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name.lower(), default)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise InvalidArgument(f"{name}={text!r} must be true or false.")
        return text == "true"

    def number(self, name: str) -> int | None:
        if not self.has(name):
            return None
        text = self.text(name)
        if not text.isdigit():
            raise InvalidArgument(f"{name}={text!r} must be a whole number.")
        return int(text)

    def count(self, name: str) -> int | None:
        number = self.number(name)
        if number == 0:
            raise InvalidArgument(f"{name}=0 must be above zero.")
        return number

    def seconds(self, name: str, default: float) -> float:
        if not self.has(name):
            return default
        match = _DURATION.match(self.text(name).strip())
        if match is None:
            raise InvalidArgument(f"{name}={self.text(name)!r} is not a duration.", hint="For example 500ms, 30s, 15m.")
        return float(match[1]) * _SECONDS[match[2]]


def _unknown(name: str, known: dict[str, str], what: str) -> InvalidArgument:
    if name in _KAFKA_NAMES:
        instead = _KAFKA_NAMES[name]
        hint = f"Here it is called {instead}." if instead else "Leave it out: it has no meaning here."
        return InvalidArgument(f"The stentor data source does not know the option {name}.", hint=hint)
    close = get_close_matches(name, known, 1)
    hint = f"Did you mean {known[close[0]]}?" if close else f"To {what}: {', '.join(known.values())}."
    return InvalidArgument(f"The stentor data source does not know the option {name}.", hint=hint)


def _connection(options: _Options, *, patient: bool) -> SparkConnection:
    timeout = options.seconds("timeout", 60.0)
    if timeout <= 0:
        raise InvalidArgument("timeout must be above zero.")
    # $STENTOR_URL is what the driver has: executors on other machines have environments of their own.
    url = options.text("url", "") or os.environ.get("STENTOR_URL") or None
    return SparkConnection(url, timeout, options.text("zone", ""), patient)


def to_json(value: Any) -> str:
    """JSON with its keys in one order: Spark compares offsets as text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
