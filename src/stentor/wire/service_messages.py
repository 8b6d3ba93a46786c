"""Control messages about services: topics that responders answer requests of."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stentor.core import service_limits
from stentor.wire.topic_settings import Name

Window = Annotated[int, msgspec.Meta(ge=1, le=service_limits.RESPONDER_WINDOW_MAX)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=True):
    """A message that is told apart by its type."""


class Serve(_Message, frozen=True):
    """This connection answers requests of a topic from now on. Answer: Done."""

    topic: Name
    window: Window  # requests that it takes at a time


class StopServing(_Message, frozen=True):
    """No more requests after the answer; those that it has are still answered. Answer: Done."""

    topic: Name


class FindResponders(_Message, frozen=True):
    """Where the responders of a topic are, as far as this broker knows. Answer: RespondersFound."""

    topic: Name


class RespondersFound(_Message, frozen=True):
    """Brokers with responders of a topic: their ids, and how many responders each has."""

    brokers: list[tuple[str, int]]


ServiceRequest = Serve | StopServing | FindResponders
ServiceResponse = RespondersFound
