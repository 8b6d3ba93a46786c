"""`stentor topic`: create, list, describe, alter, delete and recover topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import options
from stentor.cli.failure import complain
from stentor.cli.health import (
    partition_health,
    partitions_at_work,
    topic_health,
)
from stentor.cli.output import print_facts, print_json, print_table
from stentor.cli.quantities import parse_bytes, parse_seconds, show_bytes, show_seconds
from stentor.core.names import check_cursor_name, check_pattern, check_topic_name
from stentor.errors import InvalidArgument, StentorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor import PartitionInfo, TopicInfo, TopicSettings
    from stentor.client.sync_client import Client

app = options.make_app(invoke_without_command=True, help="Create, list, describe, alter, delete and recover topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic, in dotted parts, such as orders.eu.")]
Cleanup = Annotated[
    str | None,
    typer.Option(
        metavar="delete|compact|compact,delete",
        help="What becomes of old messages: retention deletes them (delete), or the latest of each key stays (compact)."
        " It cannot be changed.",
    ),
]
DeletionsKept = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long a compacted topic keeps deletions of keys, such as 1d."),
]
Kind = Annotated[
    str | None,
    typer.Option(
        metavar="stream|table|queue",
        help="Keep every message (stream), let the latest value of each key count (table), or hand out messages as jobs"
        " (queue). It cannot be changed.",
    ),
]
Flush = Annotated[
    str | None,
    typer.Option(
        metavar="always|interval",
        help="Acknowledge a message once it is on disk (always), or at once, and sync every --flush-interval-ms.",
    ),
]
FlushInterval = Annotated[
    int | None,
    typer.Option(metavar="MS", min=1, help="With --flush interval: time between syncs, which a power cut may lose."),
]
RetentionAge = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Delete messages older than this, such as 7d; none keeps them.")
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Delete the oldest messages of a partition beyond this size, such as 10GB; none keeps them.",
    ),
]
Durability = Annotated[
    str | None,
    typer.Option(
        metavar="disk|memory",
        help="Keep messages on disk, or only in memory: nothing is written, and a restart loses them.",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Number of copies, each on its own broker. 0 means three, or fewer if the cluster is smaller.",
    ),
]
MinReplicas = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=0,
        help="Refuse messages while fewer copies than this are available. 0 means a majority of the copies.",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="spread|active-passive|multi-primary",
        help="Spread the heads over all brokers, keep all on one, or give each broker partitions to write to.",
    ),
]
KeepUnrecorded = Annotated[
    bool | None,
    typer.Option(
        "--keep-unrecorded/--delete-unrecorded",
        help="Whether retention keeps messages that no recorder has recorded yet.",
    ),
]
WaitForCursor = Annotated[
    str | None,
    typer.Option(metavar="CURSOR", help="Let retention delete only what this cursor has passed; none waits for none."),
]
WaitBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Delete messages that wait for a cursor all the same beyond this size, such as 10GB; none keeps them.",
    ),
]
SegmentBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Size of a log file, such as 256MiB.")]


@app.callback()
def topic(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(context_settings=options.CONTEXT_SETTINGS)
def create(
    name: Name,
    partitions: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of partitions.")] = None,
    kind: Kind = None,
    cleanup: Cleanup = None,
    deletions_kept: DeletionsKept = None,
    durability: Durability = None,
    replicas: Replicas = None,
    min_replicas: MinReplicas = None,
    placement: Placement = None,
    flush: Flush = None,
    flush_interval_ms: FlushInterval = None,
    retention_age: RetentionAge = None,
    retention_bytes: RetentionBytes = None,
    keep_unrecorded: KeepUnrecorded = None,
    wait_for_cursor: WaitForCursor = None,
    wait_bytes: WaitBytes = None,
    segment_bytes: SegmentBytes = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the topic already exists.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Create a topic.

    Settings that you leave out take the broker's defaults. Messages keep their order within a partition. More
    partitions let more clients work in parallel.

    \b
    Examples:
      stentor topic create orders.eu
      stentor topic create orders.eu --partitions 8 --retention-age 7d --retention-bytes 10GB
      stentor topic create payments --replicas 5 --min-replicas 3
      stentor topic create telemetry --durability memory --retention-bytes 64MiB
    """
    settings = _settings(flush, flush_interval_ms, retention_age, retention_bytes, segment_bytes, keep_unrecorded)
    settings |= _waiting(wait_for_cursor, wait_bytes)
    settings |= given(partitions=partitions, replicas=replicas, min_replicas=min_replicas, placement=placement)
    settings |= given(kind=kind, cleanup=cleanup, durability=durability) | _kept(deletions_kept)
    check_topic_name(name)
    check_replicas(replicas, min_replicas)
    with options.connect(url, timeout, "topic create") as client:
        topic = client.create_topic(name, exist_ok=exist_ok, **settings)
    tell_differences(topic, settings)
    print_topic(topic, as_json=json)


def check_replicas(replicas: int | None, min_replicas: int | None) -> None:
    """Refuse what no topic could fulfil."""
    if replicas and min_replicas and min_replicas > replicas:
        raise InvalidArgument(
            f"--min-replicas {min_replicas} is above --replicas {replicas}: the topic would never accept a message.",
            hint=f"Use at most {replicas}.",
        )


def tell_differences(topic: TopicInfo, settings: dict[str, Any]) -> None:
    """What was asked for and is not so, since the topic was there already; 0 replicas are whatever the broker chose."""
    found = {name: getattr(topic.settings, name) for name in settings}
    differing = [
        f"{name} is {'none' if found[name] is None else found[name]}, not {'none' if wanted is None else wanted}"
        for name, wanted in settings.items()
        if found[name] != wanted and not (name == "replicas" and wanted == 0)
    ]
    if differing:
        complain(
            f"Topic {topic.name} already exists and was not changed: {', '.join(differing)}."
            " `stentor topic alter` changes settings, except the number of partitions, the kind, the cleanup and the"
            " durability."
        )


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_topics(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="List only topics that match, such as 'orders.*' or 'orders.>'."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List internal topics too: those whose names begin with an underscore.")
    ] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List all topics, or those that match a pattern."""
    if pattern is not None:
        check_pattern(pattern)
    with options.connect(url, timeout, "topic list") as client:
        topics = client.topics(pattern, internal=everything)
    if json:
        print_json(topics)
    else:
        print_topics(topics)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def describe(
    name: Name,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print a topic's settings, the groups and cursors that read it, and the state of its partitions."""
    check_topic_name(name)
    with options.connect(url, timeout, "topic describe") as client:
        topic = client.describe_topic(name)
        print_topic(topic, as_json=json, readers=[] if json else _readers(client, name))


def _readers(client: Client, name: str) -> list[str]:
    """Groups and cursors with their lags; none where the brokers cannot say it now."""
    try:
        return [f"{cursor.name} ({sum(cursor.lag.values()):,} behind)" for cursor in client.cursors(name)]
    except StentorError:
        return []


@app.command(context_settings=options.CONTEXT_SETTINGS)
def alter(
    name: Name,
    replicas: Replicas = None,
    min_replicas: MinReplicas = None,
    placement: Placement = None,
    deletions_kept: DeletionsKept = None,
    flush: Flush = None,
    flush_interval_ms: FlushInterval = None,
    retention_age: RetentionAge = None,
    retention_bytes: RetentionBytes = None,
    keep_unrecorded: KeepUnrecorded = None,
    wait_for_cursor: WaitForCursor = None,
    wait_bytes: WaitBytes = None,
    segment_bytes: SegmentBytes = None,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Change settings of a topic; all others stay as they are.

    \b
    Examples:
      stentor topic alter orders.eu --retention-age 30d
      stentor topic alter orders.eu --retention-bytes none
      stentor topic alter orders.eu --replicas 5
    """
    changes = _settings(flush, flush_interval_ms, retention_age, retention_bytes, segment_bytes, keep_unrecorded)
    changes |= _waiting(wait_for_cursor, wait_bytes)
    changes |= given(replicas=replicas, min_replicas=min_replicas, placement=placement) | _kept(deletions_kept)
    if not changes:
        raise InvalidArgument("No setting was named.", hint="Name a setting to change, such as --retention-age 7d.")
    check_topic_name(name)
    check_replicas(replicas, min_replicas)
    with options.connect(url, timeout, "topic alter") as client:
        print_topic(client.alter_topic(name, **changes), as_json=json)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def delete(
    name: Name,
    yes: options.Yes = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Delete a topic and all its messages. This cannot be undone."""
    check_topic_name(name)
    if not yes:
        options.confirm(f"Delete {name} and all its messages?", f"Deleting {name}")
    with options.connect(url, timeout, "topic delete") as client:
        client.delete_topic(name)
    print(f"deleted {name}")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def recover(
    name: Name,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0, help="Recover only this partition.")] = None,
    broker: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Let the copy on this broker lead. By default it is the copy that holds most."),
    ] = None,
    yes: options.Yes = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Let an incomplete copy lead a partition; messages that it lacks are lost.

    This is for partitions that cannot come back by themselves: all members of the chain are gone for good, or etcd
    was restored from an older state. Partitions that work are not touched.

    \b
    Examples:
      stentor topic recover orders.eu
      stentor topic recover orders.eu --partition 3 --broker broker2
    """
    check_topic_name(name)
    if not yes:
        options.confirm(f"Recover {name}, and lose the messages that the copy lacks?", f"Recovering {name}")
    with options.connect(url, timeout, "topic recover") as client:
        topic = client.describe_topic(name)
        at_work = partitions_at_work(client, topic, timeout) if broker is None else set()
        for index in range(len(topic.partitions)) if partition is None else (partition,):
            done = f"left as it is: {name}/{index} is at work." if index in at_work else ""
            print(f"{name}/{index}: {done or _recovered(client, name, index, broker)}")


def _recovered(client: Client, name: str, partition: int, broker: str | None) -> str:
    try:
        done = client.recover_partition(name, partition, broker)
    except InvalidArgument as error:
        return f"left as it is: {error.message}"
    lost = (
        f"offsets {done.end} to {done.committed - 1} are lost"
        if done.committed > done.end
        else "no known message is lost"
    )
    return f"leads again from offset {done.end}, epoch {done.epoch}; {lost}"


def given(**settings: Any) -> dict[str, Any]:
    """The settings that were named."""
    return {name: value for name, value in settings.items() if value is not None}


def _settings(
    flush: str | None,
    flush_interval_ms: int | None,
    retention_age: str | None,
    retention_bytes: str | None,
    segment_bytes: str | None,
    keep_unrecorded: bool | None,
) -> dict[str, Any]:
    """The settings that were named, as the client takes them; `none` lifts a retention."""
    settings: dict[str, Any] = {}
    if flush is not None:
        settings["flush"] = flush
    if flush_interval_ms is not None:
        settings["flush_interval_ms"] = flush_interval_ms
    if retention_age is not None:
        settings["retention_age_s"] = (
            None if retention_age == "none" else parse_seconds(retention_age, "--retention-age")
        )
    if retention_bytes is not None:
        lifted = retention_bytes == "none"
        settings["retention_bytes"] = None if lifted else parse_bytes(retention_bytes, "--retention-bytes")
    if segment_bytes is not None:
        settings["segment_bytes"] = parse_bytes(segment_bytes, "--segment-bytes")
    if keep_unrecorded is not None:
        settings["keep_unrecorded"] = keep_unrecorded
    return settings


def _kept(deletions_kept: str | None) -> dict[str, Any]:
    if deletions_kept is None:
        return {}
    return {"deletions_kept_s": parse_seconds(deletions_kept, "--deletions-kept")}


def _waiting(wait_for_cursor: str | None, wait_bytes: str | None) -> dict[str, Any]:
    """What retention waits for; `none` lifts it."""
    settings: dict[str, Any] = {}
    if wait_for_cursor is not None:
        settings["retention_waits_for"] = "" if wait_for_cursor == "none" else check_cursor_name(wait_for_cursor)
    if wait_bytes is not None:
        settings["retention_wait_bytes"] = None if wait_bytes == "none" else parse_bytes(wait_bytes, "--wait-bytes")
    return settings


def print_topics(topics: list[TopicInfo]) -> None:
    """Print one line per topic."""
    headings = ("TOPIC", "KIND", "PARTITIONS", "MESSAGES", "SIZE", "FLUSH", "RETENTION", "HEALTH")
    rows = (
        (
            topic.name,
            topic.settings.kind,
            len(topic.partitions),
            f"{sum(partition.committed - partition.start for partition in topic.partitions):,}",
            show_bytes(sum(partition.bytes for partition in topic.partitions)),
            topic.settings.flush if topic.settings.durability == "disk" else "never",
            _retention(topic),
            topic_health(topic),
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    )
    print_table(headings, rows, right=("PARTITIONS", "MESSAGES", "SIZE"))


def _retention(topic: TopicInfo) -> str:
    limits = ["in memory"] if topic.settings.durability == "memory" else []
    if topic.settings.retention_age_s is not None:
        limits.append(show_seconds(topic.settings.retention_age_s))
    if topic.settings.retention_bytes is not None:
        limits.append(show_bytes(topic.settings.retention_bytes))
    if limits and topic.settings.keep_unrecorded:
        limits.append("recorded only")
    if limits and topic.settings.retention_waits_for:
        limits.append(f"waits for {topic.settings.retention_waits_for}")
    if limits and topic.settings.waits_for and topic.settings.retention_wait_bytes is not None:
        limits.append(f"up to {show_bytes(topic.settings.retention_wait_bytes)}")
    return ", ".join(limits) or "for ever"


def print_topic(topic: TopicInfo, *, as_json: bool, readers: Sequence[str] = ()) -> None:
    """Print a topic with its settings and partitions."""
    if as_json:
        print_json(topic)
        return
    from stentor.wire.schemas import in_words

    settings = topic.settings
    flush = settings.flush if settings.flush == "always" else f"every {settings.flush_interval_ms} ms"
    print_facts(
        [
            ("topic", topic.name),
            ("id", f"{topic.id:016x}"),
            ("kind", settings.kind),
            *([("cleanup", settings.cleanup)] if settings.cleanup != "delete" else []),
            *([("durability", settings.durability)] if settings.durability != "disk" else []),
            ("replicas", _replicas(settings)),
            *([("flush", flush)] if settings.durability == "disk" else []),
            ("retention", _retention(topic)),
            *([("segment size", show_bytes(settings.segment_bytes))] if settings.durability == "disk" else []),
            *([("groups", ", ".join(readers))] if readers else []),
            *([("schema", f"version {len(topic.schemas)}: {in_words(topic.schemas[-1])}")] if topic.schemas else []),
        ]
    )
    print()
    _print_partitions(topic)
    if settings.compacted:
        print()
        _print_compacted(topic.partitions)
    if settings.waits_for or any(partition.recorded for partition in topic.partitions):
        print()
        _print_passed(topic.partitions, "PASSED" if settings.retention_waits_for else "RECORDED")


def _replicas(settings: TopicSettings) -> str:
    return f"{settings.replicas_wanted}, at least {settings.replicas_needed}, {settings.placement}"


def _print_partitions(topic: TopicInfo) -> None:
    headings = ("PARTITION", "START", "COMMITTED", "END", "SIZE", "SEGMENTS", "EPOCH", "CHAIN", "HEALTH")
    rows = (
        (
            each.partition,
            each.start,
            each.committed,
            each.end,
            show_bytes(each.bytes),
            each.segments,
            each.epoch,
            "→".join(each.chain) or "-",
            partition_health(each, topic.settings),
        )
        for each in topic.partitions
    )
    print_table(headings, rows, right=headings[:7])


def _print_compacted(partitions: list[PartitionInfo]) -> None:
    """How far each partition is compacted, and what that has saved on its head since that was started."""
    headings = ("PARTITION", "COMPACTED TO", "MESSAGES REMOVED", "BYTES SAVED")
    rows = (
        (each.partition, each.compacted_to, f"{each.messages_removed:,}", show_bytes(each.bytes_saved))
        for each in partitions
    )
    print_table(headings, rows, right=headings)


def _print_passed(partitions: list[PartitionInfo], passed: str) -> None:
    """How far the cursors are that retention waits for, and what is kept for them past the topic's retention."""
    headings = ("PARTITION", passed, f"NOT {passed}", "KEPT LONGER")
    rows = (
        (
            each.partition,
            each.recorded,
            f"{max(0, each.committed - max(each.start, each.recorded)):,}",
            f"{each.kept_unrecorded:,}",
        )
        for each in partitions
    )
    print_table(headings, rows, right=headings)
