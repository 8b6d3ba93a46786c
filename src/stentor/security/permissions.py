"""Who somebody is, and whether they may do something: the one question before everything that is asked of a broker.

A connection gets its principal in one place, when it is admitted (`broker.sessions.newcomer`). `Permissions.check` is
asked before every request, publish, stream and page of HTTP. There are no users yet, so it says yes to everybody, but
that the brokers' own topics are theirs to change; what only brokers may say is kept from clients by the kind of their
session.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from stentor.core.names import CURSORS_TOPIC, is_reserved
from stentor.errors import TopicReserved


class Action(enum.Enum):
    """What somebody may want to do."""

    PUBLISH = "publish"
    READ = "read"
    DESCRIBE = "describe"  # see that a topic exists, its settings and where it is
    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"
    OPERATE = "operate"  # drain and forget brokers, let a copy lead
    OBSERVE = "observe"  # statistics, metrics, who is connected


class Principal(msgspec.Struct, frozen=True):
    """Who is on the other side."""

    kind: str  # "client" or "broker"
    name: str = ""  # of a broker: the id that it has proved


_CHANGES: Final = frozenset((Action.PUBLISH, Action.CREATE, Action.ALTER, Action.DELETE))

ANYBODY: Final = Principal("client")
"""A client; nobody has to say who they are."""


class Permissions:
    """Says whether a principal may do something."""

    def check(self, principal: Principal, action: Action, topic: str = "") -> None:
        """Raise the refusal; return if it may."""
        if is_reserved(topic) and action in _CHANGES and principal.kind == "client":
            raise TopicReserved(
                f"Topic {topic} is the brokers' own.",
                hint="Names that begin with `_stentor.` are reserved.",
                object=topic,
            )

    def check_records(self, topic: str) -> None:
        """Raise the refusal if a topic's messages are shown to no client.

        Those of `_stentor.cursors` say what transactions send before it is in its topics, and by which ids members
        speak (C36). What people may know of them is said by `stentor cursor list` and `stentor group describe`.
        """
        if topic == CURSORS_TOPIC:
            raise TopicReserved(
                f"Topic {topic} is the brokers' own, and its messages are shown to nobody.",
                hint="`stentor group describe` and `stentor cursor list` show what they say about groups and cursors.",
                object=topic,
            )

    def allows(self, principal: Principal, action: Action, topic: str = "") -> bool:
        """The same, for lists: what somebody may not see is left out."""
        del principal, action, topic
        return True
