"""The routes a client knows, by topic: a table or a change taken in, topics and patterns looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.core.names import check_pattern, is_pattern, matches
from stentor.errors import TopicNotFound
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.wire.messages import TopicRoute

    Routes = dict[str, TopicRoute]


def replaced(known: Routes, topics: Iterable[TopicRoute]) -> Routes:
    """A whole table instead of what was known; what is known to be newer of a partition stays."""
    return {topic.name: newest(known, topic) for topic in topics}


def merged(known: Routes, topics: Iterable[TopicRoute]) -> Routes:
    """A table that may be old, beside what is known: it says nothing against topics that were made since."""
    table = replaced(known, topics)
    return table | {name: topic for name, topic in known.items() if name not in table or table[name].id != topic.id}


def newest(known: Routes, topic: TopicRoute) -> TopicRoute:
    """A topic's route, with the newer of what is said and what is known of each partition."""
    before = known.get(topic.name)
    if before is None or before.id != topic.id:
        return topic
    partitions = [
        old if old.epoch > new.epoch else new for old, new in zip(before.partitions, topic.partitions, strict=True)
    ]
    return msgspec.structs.replace(topic, partitions=partitions)


def matching(routes: Routes, topics: list[str]) -> list[TopicRoute]:
    """The routes of topics and patterns, by name; TopicNotFound for a topic that is not there."""
    found: Routes = {}
    for topic in topics:
        check_pattern(topic)
        if is_pattern(topic):
            found |= {name: route for name, route in routes.items() if matches(topic, name)}
        elif topic in routes:
            found[topic] = routes[topic]
        else:
            raise TopicNotFound(
                f"There is no topic {topic}.",
                hint=f"Make it with `stentor topic create {topic}`, or look with `stentor topic list`.",
                object=topic,
            )
    return [found[name] for name in sorted(found)]


async def existing(core: ClientCore, topics: list[str], deadline: Deadline) -> list[TopicRoute]:
    """The same of what a client knows; neither it nor its broker may have heard of a topic that was just made."""
    for topic in topics:
        check_pattern(topic)
    await core.link_within(deadline, "find topics")
    if _unknown(core, topics):
        await core.refresh_routes(deadline)
    if missing := _unknown(core, topics):
        for name in missing:
            await core.call(messages.DescribeTopic(name=name), deadline)  # a broker that lacks it asks the store
        await core.refresh_routes(deadline)
    return matching(core.routes, topics)


def _unknown(core: ClientCore, topics: list[str]) -> list[str]:
    return [topic for topic in topics if not is_pattern(topic) and topic not in core.routes]
