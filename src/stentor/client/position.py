"""Position: the place in a partition from which to read on, with a text that can be stored anywhere.

orders.eu/2@17#3119a8c87891dba8 is topic orders.eu, partition 2, next offset 17, and the topic's id, in hexadecimal as
everywhere where people see it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from stentor.errors import InvalidArgument

_TEXT: Final = re.compile(r"([A-Za-z0-9_.-]+)/([0-9]{1,9})@([0-9]{1,19})(?:#([0-9a-f]{1,16}))?\Z")


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where to read on: topic, partition, and the offset of the next message.

    `message.position` is the position behind a message. `str(position)` is a short text that can be stored in a file,
    in JSON or in a database; `Position.parse` reads it back. `start=` of `subscribe` and `read` takes a position, its
    text, or a list of either.

    Args:
        topic: The topic's name.
        partition: The partition's number; the first is 0.
        offset: The offset of the next message to read.
        topic_id: The topic's id. It tells a topic from a later one of the same name: a position with an id does not fit
            a topic that was deleted and made anew. None if it is not known.

    Example:
        >>> position = stentor.Position("orders.eu", 2, 17)
        >>> print(position)
        orders.eu/2@17
    """

    topic: str
    partition: int
    offset: int
    topic_id: int | None = None

    @classmethod
    def parse(cls, text: object) -> Position:
        """Read back what `str(position)` gave.

        Args:
            text: Such as "orders.eu/2@17#3119a8c87891dba8". The topic's id, behind the `#`, may be missing.

        Example:
            >>> stentor.Position.parse("orders.eu/2@17#3119a8c87891dba8").offset
            17
        """
        found = _TEXT.match(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidArgument(
                f"{text!r} is not a position.", hint="A position is topic/partition@offset, such as orders.eu/2@17."
            )
        topic, partition, offset, topic_id = found.groups()
        return cls(topic, int(partition), int(offset), None if topic_id is None else int(topic_id, 16))

    def __str__(self) -> str:
        known = "" if self.topic_id is None else f"#{self.topic_id:016x}"
        return f"{self.topic}/{self.partition}@{self.offset}{known}"
