"""`stentor describe`: a broker and its topics at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.cli import options
from stentor.cli.health import broker_problems, is_damaged, lacking
from stentor.cli.output import print_facts, print_json
from stentor.cli.quantities import plural, show_bytes, show_seconds
from stentor.cli.topic import print_topics
from stentor.wire.statistics import from_map

if TYPE_CHECKING:
    from stentor import BrokerInfo, TopicInfo
    from stentor.wire.statistics import BrokerStatistics

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def describe(json: options.Json = False, url: options.Url = None, timeout: options.Timeout = options.TIMEOUT_S) -> None:
    """Print an overview of a broker and its topics.

    For one topic in detail, use `stentor topic describe NAME`.
    """
    with options.connect(url, timeout, "describe") as client:
        broker, statistics, topics = client.broker(), client.statistics(), client.topics()
    if json:
        import msgspec

        print_json({"broker": msgspec.to_builtins(broker), "statistics": statistics, "topics": topics})
        return
    print_facts(_facts(broker, from_map(statistics), topics))
    if topics:
        print()
        print_topics(topics)


def _facts(broker: BrokerInfo, statistics: BrokerStatistics, topics: list[TopicInfo]) -> list[tuple[str, object]]:
    partitions = [partition for topic in topics for partition in topic.partitions]
    return [
        ("broker", broker.id),
        ("cluster", broker.cluster_id),
        ("version", broker.version),
        ("address", f"stentor://{broker.address}"),
        ("http", f"http://{broker.http_address}" if broker.http_address else "off"),
        ("zone", broker.zone or "-"),
        ("up for", show_seconds(statistics.broker.uptime_s)),
        ("connections", statistics.broker.connections),
        ("topics", f"{len(topics)} with {plural(len(partitions), 'partition')}"),
        ("log", show_bytes(sum(partition.bytes for partition in partitions))),
        ("health", _health(statistics, topics)),
    ]


def _health(statistics: BrokerStatistics, topics: list[TopicInfo]) -> str:
    all_of_them = [(partition, topic.settings) for topic in topics for partition in topic.partitions]
    damaged = sum(1 for partition, _ in all_of_them if is_damaged(partition))
    short = sum(1 for partition, settings in all_of_them if lacking(partition, settings))
    wrong = [
        *(problem.message.rstrip(".") for problem in broker_problems(statistics)),
        f"{plural(short, 'partition')} without all replicas" if short else "",
        f"{plural(damaged, 'partition')} damaged; run stentor doctor" if damaged else "",
    ]
    return ", ".join(filter(None, wrong)) or "ok"
