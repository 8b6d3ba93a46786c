"""What a query reads of the cluster, found out in the driver: its topics, where they begin and end."""

from __future__ import annotations

import logging
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from stentor.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound
from stentor.spark.offsets import Places, TopicPlace, places_of, recreated
from stentor.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from stentor.spark.options import Given, SparkReadOptions

logger = logging.getLogger(__name__)


class SparkTopics:
    """The topics that the options name."""

    def __init__(self, options: SparkReadOptions) -> None:
        self._options = options

    def at(self, position: Any, names: list[str] | None = None, *, gone_ok: bool = False) -> Places:
        """Where a position is in every partition: only committed messages are before `latest`."""
        regex = self._options.topic_regex
        found = self._found(names or self._options.topics or [">"], position, gone_ok)
        if regex is not None and names is None:
            found = {name: topic for name, topic in found.items() if re.fullmatch(regex, name)}
        for name, topic_id in self._options.topic_ids.items():
            if name in found and found[name].id != topic_id:
                raise recreated(name)
        return self._assigned(found)

    def _found(self, names: list[str], position: Any, gone_ok: bool) -> Places:
        client = self._options.connection.client()
        try:
            found = client.find_offsets(names, position, stale=self._options.stale)
        except TopicNotFound as error:
            left = [name for name in names if name != error.object]
            if len(left) == len(names) or not (gone_ok or (left and not self._options.fail_on_data_loss)):
                raise
            return self._found(left, position, gone_ok) if left else {}
        for name in (name for name, topic in found.items() if not topic.sure):
            logger.warning("The end of %s is not certain: more messages may be committed than are read.", name)
        return places_of(found)

    def _assigned(self, found: Places) -> Places:
        chosen = self._options.partitions
        if chosen is None:
            return found
        kept: Places = {}
        for name, topic in found.items():
            missing = set(chosen.get(name, topic.offsets)) - topic.offsets.keys()
            if missing:
                raise InvalidArgument(
                    f"Topic {name} has no partition {min(missing)}.", hint=f"It has 0 to {len(topic.offsets) - 1}."
                )
            named = chosen.get(name, topic.offsets)
            begins = {p: first for p, first in topic.begins.items() if p in named}
            kept[name] = TopicPlace(topic.id, {p: topic.offsets[p] for p in named}, begins)
        return kept

    def resolved(self, position: str | Given | datetime, default: str, what: str) -> Places:
        """A position of the options as offsets that the logs hold; partitions that JSON does not name: the default."""
        if isinstance(position, str | datetime):
            return self.at(position)
        return self._checked_all(self._given(position, default), what)

    def _given(self, position: Given, default: str) -> Places:
        places = self.at(default)
        earliest = self.at("earliest")
        latest = self.at("latest")
        for name, offsets in position.items():
            if name not in places:
                raise InvalidArgument(f"Offsets name {name}, which is not among the topics read.")
            for partition, offset in offsets.items():
                if partition not in places[name].offsets:
                    raise InvalidArgument(f"Topic {name} has no partition {partition}, for which an offset is given.")
                special = {EARLIEST: earliest, LATEST: latest}.get(offset)
                places[name].offsets[partition] = special[name].offsets[partition] if special else offset
        return places

    def _checked_all(self, places: Places, what: str) -> Places:
        """Offsets that the logs do not hold are an error, or moved, as failOnDataLoss says."""
        earliest, latest = self.at("earliest"), self.at("latest")
        return {name: self._checked(name, topic, earliest[name], latest[name], what) for name, topic in places.items()}

    def _checked(self, name: str, topic: TopicPlace, earliest: TopicPlace, latest: TopicPlace, what: str) -> TopicPlace:
        offsets = {}
        for partition, offset in topic.offsets.items():
            low, high = earliest.offsets[partition], latest.offsets[partition]
            if not low <= offset <= high and self._options.fail_on_data_loss:
                raise OffsetOutOfRange(
                    f"{name}/{partition} holds offsets {low} to {high}; {what} says {offset}.",
                    hint="Choose offsets in that range, or set failOnDataLoss to false to read what the topic holds.",
                    object=f"{name}/{partition}",
                )
            offsets[partition] = min(max(offset, low), high)
        return TopicPlace(topic.id, offsets)
