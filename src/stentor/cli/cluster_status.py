"""What `stentor cluster status` shows: the processes as their supervisor sees them, the chains as the brokers do."""

from __future__ import annotations

import http.client
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stentor.cli import supervisor
from stentor.cli.output import table_lines
from stentor.errors import StentorError
from stentor.transport.address import Address
from stentor.wire.statistics import BrokerStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stentor import PartitionInfo, TopicInfo

_CONNECT_S: Final = 3.0
_ASK_S: Final = 1.0

# Made before there are threads: msgspec crashes when several of them are the first to use a type.
_decode: Final = msgspec.json.Decoder(BrokerStatistics).decode

BROKER_HEADINGS: Final = ("broker", "pid", "state", "controller", "zone", "address", "http")
PARTITION_HEADINGS: Final = ("partition", "chain", "epoch", "committed", "lag")


def collect(data: Path) -> dict[str, Any]:
    """The whole status of the cluster in this directory, as JSON shows it."""
    state: dict[str, Any] = supervisor.ask(data, "status")
    with ThreadPoolExecutor(max(1, len(state["brokers"]))) as threads:
        asked = dict(zip((b["name"] for b in state["brokers"]), threads.map(_ask, state["brokers"]), strict=True))
    answers = {name: answer for name, answer in asked.items() if answer is not None}
    controller = _controller(answers)
    for broker in state["brokers"]:
        broker["controller"] = broker["name"] == controller
        broker["state"] = _state(broker["state"], answers.get(broker["name"]))
    topics = _topics(state["brokers"])
    state["partitions"] = [_partition(topic.name, info, answers) for topic in topics for info in topic.partitions]
    return state


def _ask(broker: dict[str, Any]) -> BrokerStatistics | None:
    """A broker's statistics; nothing from one that says nothing."""
    if broker["state"] != "running" or not broker["http_address"]:
        return None
    where = Address.parse(broker["http_address"])
    connection = http.client.HTTPConnection(where.host, where.port, timeout=_ASK_S)
    try:
        connection.request("GET", "/statistics")
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            return None
        return _decode(answer.read())
    except (OSError, http.client.HTTPException, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        connection.close()


def _state(process: str, answer: BrokerStatistics | None) -> str:
    if process != "running" or answer is None:
        return process
    return "ready" if answer.cluster is None or answer.cluster.confirmed else "cut off"


def _controller(answers: dict[str, BrokerStatistics]) -> str:
    """Whom most brokers that hear the others take for it."""
    clusters = [answer.cluster for answer in answers.values() if answer.cluster is not None]
    counted = Counter(cluster.controller for cluster in clusters if cluster.confirmed and cluster.controller)
    return counted.most_common(1)[0][0] if counted else ""


def _topics(brokers: list[dict[str, Any]]) -> list[TopicInfo]:
    """What the brokers say of topics and chains: those that hear the others, or any if there is none."""
    import stentor

    running = [broker for broker in brokers if broker["state"] not in {"paused", "dead"}]
    asked = [broker for broker in running if broker["state"] == "ready"] or running
    if not asked:
        return []
    url = "stentor://" + ",".join(broker["address"] for broker in asked)
    try:
        with stentor.connect(url, name="stentor cluster status", timeout=_CONNECT_S) as client:
            return client.topics()
    except StentorError:
        return []


def _partition(topic: str, info: PartitionInfo, answers: dict[str, BrokerStatistics]) -> dict[str, Any]:
    """A partition, with what each broker that answers has of it."""
    replicas = {
        name: copy.replica
        for name, answer in answers.items()
        for copy in answer.partitions
        if (copy.topic, copy.partition) == (topic, info.partition)
    }
    others = sorted(set(replicas) - set(info.chain))
    members = [replicas[name] for name in info.chain if name in replicas]
    end = max([info.end, *(member.end for member in members)])
    return {
        "topic": topic,
        "partition": info.partition,
        "chain": info.chain,
        "others": others,
        "epoch": info.epoch,
        "committed": max([info.committed, *(member.committed for member in members)]),
        "end": end,
        "lag": {
            name: max(0, end - replicas[name].durable) if name in replicas else None for name in [*info.chain, *others]
        },
    }


# --- as people see it --------------------------------------------------------------------------


def broker_rows(status: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    """A row for each process."""
    for kind in ("brokers", "etcd", "haproxy"):
        for each in status[kind]:
            yield (
                each["name"],
                str(each["pid"] or "-"),
                each["state"],
                "controller" if each.get("controller") else "",
                each.get("zone") or "-",
                each["address"],
                each.get("http_address") or "-",
            )


def partition_rows(status: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    """A row for each partition; `+b3` is a copy that is no member, or not yet."""
    for each in status["partitions"]:
        joining = "".join(f" +{name}" for name in each["others"])
        yield (
            f"{each['topic']}/{each['partition']}",
            "→".join(each["chain"]) + joining,
            str(each["epoch"]),
            str(each["committed"]),
            " ".join(f"{name}:{'?' if lag is None else lag}" for name, lag in each["lag"].items()),
        )


def facts(status: dict[str, Any]) -> Iterable[str]:
    """What stands around the tables."""
    yield f"url  {status['url']}"
    for a, b in status["cuts"]:
        yield f"cut  {a} -> {b}"


def lines(status: dict[str, Any]) -> list[str]:
    """Plain lines, for pipes and for one look."""
    found = [*facts(status), "", *table_lines(BROKER_HEADINGS, broker_rows(status), right=("pid",))]
    if status["partitions"]:
        found += ["", *table_lines(PARTITION_HEADINGS, partition_rows(status), right=("epoch", "committed"))]
    return found


def picture(status: dict[str, Any]) -> Any:
    """The same in colour, for a terminal that is looked at."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colours = {"ready": "green", "running": "green", "paused": "yellow", "cut off": "yellow", "dead": "red"}
    brokers = Table(*BROKER_HEADINGS, box=box.SIMPLE)
    for row in broker_rows(status):
        brokers.add_row(*row[:2], Text(row[2], style=colours.get(row[2], "")), *row[3:])
    partitions = Table(*PARTITION_HEADINGS, box=box.SIMPLE)
    for row in partition_rows(status):
        partitions.add_row(*row)
    parts = [Text(line) for line in facts(status)]
    return Group(*parts, brokers, *([partitions] if status["partitions"] else []))
