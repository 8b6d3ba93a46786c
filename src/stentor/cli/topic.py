"""`stentor topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import options
from stentor.cli.output import print_facts, print_json, print_table
from stentor.cli.quantities import parse_bytes, parse_seconds, show_bytes, show_seconds
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor import PartitionInfo, TopicInfo

app = options.make_app(invoke_without_command=True, help="Create, list, describe, alter and delete topics.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic: dotted parts, such as orders.eu.")]
Flush = Annotated[
    str | None,
    typer.Option(
        metavar="always|interval",
        help="Acknowledge when the disk has it (always), or at once and write every --flush-interval-ms.",
    ),
]
FlushInterval = Annotated[int | None, typer.Option(metavar="MS", min=1, help="What a power cut may take.")]
RetentionAge = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Delete messages older than this, like 7d; none keeps them.")
]
RetentionBytes = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Delete the oldest beyond this size per partition, like 10GB; none keeps them."),
]
KeepUnrecorded = Annotated[
    bool | None,
    typer.Option(
        "--keep-unrecorded/--delete-unrecorded", help="Retention waits for what a recorder has not marked yet, or not."
    ),
]
SegmentBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Size of a log file, like 256MiB.")]


@app.callback()
def topic(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(context_settings=options.CONTEXT_SETTINGS)
def create(
    name: Name,
    partitions: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many partitions.")] = None,
    flush: Flush = None,
    flush_interval_ms: FlushInterval = None,
    retention_age: RetentionAge = None,
    retention_bytes: RetentionBytes = None,
    keep_unrecorded: KeepUnrecorded = None,
    segment_bytes: SegmentBytes = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the topic is there already.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Create a topic.

    What is not said is the broker's default. Order holds within a partition; more partitions, more speed.

    \b
    Examples:
      stentor topic create orders.eu
      stentor topic create orders.eu --partitions 8 --retention-age 7d --retention-bytes 10GB
    """
    settings = _settings(flush, flush_interval_ms, retention_age, retention_bytes, segment_bytes, keep_unrecorded)
    if partitions is not None:
        settings["partitions"] = partitions
    with options.connect(url, timeout, "topic create") as client:
        _print_topic(client.create_topic(name, exist_ok=exist_ok, **settings), as_json=json)


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_topics(
    pattern: Annotated[
        str | None, typer.Argument(metavar="PATTERN", help="Only these, such as 'orders.*' or 'orders.>'.")
    ] = None,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List topics, all or those that match a pattern."""
    with options.connect(url, timeout, "topic list") as client:
        topics = client.topics(pattern)
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
    """Print a topic's settings and the state of its partitions."""
    with options.connect(url, timeout, "topic describe") as client:
        _print_topic(client.describe_topic(name), as_json=json)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def alter(
    name: Name,
    flush: Flush = None,
    flush_interval_ms: FlushInterval = None,
    retention_age: RetentionAge = None,
    retention_bytes: RetentionBytes = None,
    keep_unrecorded: KeepUnrecorded = None,
    segment_bytes: SegmentBytes = None,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Change settings of a topic; those not named stay as they are.

    \b
    Examples:
      stentor topic alter orders.eu --retention-age 30d
      stentor topic alter orders.eu --retention-bytes none
    """
    changes = _settings(flush, flush_interval_ms, retention_age, retention_bytes, segment_bytes, keep_unrecorded)
    if not changes:
        raise InvalidArgument("There is nothing to change.", hint="Name a setting, such as --retention-age 7d.")
    with options.connect(url, timeout, "topic alter") as client:
        _print_topic(client.alter_topic(name, **changes), as_json=json)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Delete a topic and all its messages; there is no way back."""
    if not yes:
        _confirm(name)
    with options.connect(url, timeout, "topic delete") as client:
        client.delete_topic(name)
    print(f"deleted {name}")


def _confirm(name: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidArgument(f"Deleting {name} must be confirmed.", hint="Add --yes.")
    typer.confirm(f"Delete {name} and all its messages?", abort=True)


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


def print_topics(topics: list[TopicInfo]) -> None:
    """Print one line per topic."""
    headings = ("TOPIC", "PARTITIONS", "MESSAGES", "SIZE", "FLUSH", "RETENTION", "HEALTH")
    rows = (
        (
            topic.name,
            len(topic.partitions),
            f"{sum(partition.committed - partition.start for partition in topic.partitions):,}",
            show_bytes(sum(partition.bytes for partition in topic.partitions)),
            topic.settings.flush,
            _retention(topic),
            "ok" if not any(map(_health, topic.partitions)) else "damaged",
        )
        for topic in sorted(topics, key=lambda topic: topic.name)
    )
    print_table(headings, rows, right=("PARTITIONS", "MESSAGES", "SIZE"))


def _retention(topic: TopicInfo) -> str:
    limits = []
    if topic.settings.retention_age_s is not None:
        limits.append(show_seconds(topic.settings.retention_age_s))
    if topic.settings.retention_bytes is not None:
        limits.append(show_bytes(topic.settings.retention_bytes))
    if limits and topic.settings.keep_unrecorded:
        limits.append("recorded only")
    return ", ".join(limits) or "for ever"


def _print_topic(topic: TopicInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(topic)
        return
    settings = topic.settings
    flush = settings.flush if settings.flush == "always" else f"every {settings.flush_interval_ms} ms"
    print_facts(
        [
            ("topic", topic.name),
            ("id", f"{topic.id:016x}"),
            ("flush", flush),
            ("retention", _retention(topic)),
            ("segments of", show_bytes(settings.segment_bytes)),
        ]
    )
    print()
    _print_partitions(topic.partitions)
    if settings.keep_unrecorded or any(partition.recorded for partition in topic.partitions):
        print()
        _print_recorded(topic.partitions)


def _print_partitions(partitions: list[PartitionInfo]) -> None:
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
            _health(each) or "ok",
        )
        for each in partitions
    )
    print_table(headings, rows, right=headings[:7])


def _print_recorded(partitions: list[PartitionInfo]) -> None:
    """How far recorders have come, and what is kept for them past the topic's retention."""
    headings = ("PARTITION", "RECORDED", "NOT RECORDED", "KEPT FOR IT")
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


def _health(partition: PartitionInfo) -> str:
    """What is wrong with a partition; nothing if all is well."""
    if partition.failed:
        return f"failed: {partition.failed}"
    return ", ".join(f"offsets {first} to {after - 1} damaged" for first, after in partition.damaged)
