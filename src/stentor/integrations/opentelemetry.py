"""OpenTelemetry for applications that handle messages in loops of their own.

    client = stentor.connect(url, tracing=True)
    for message in client.subscribe("orders"):
        with processing(message):
            ...

Handlers of `run` and `serve` have their spans from the client, and need nothing of this. See docs/tracing.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stentor.integrations.packages import need

need("opentelemetry", "stentor.integrations.opentelemetry", "pip install 'opentelemetry-api>=1.27'")

from stentor.client.tracing import Tracing  # noqa: E402
from stentor.client.tracing import context_of as _context_of  # noqa: E402

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from stentor.client.job import Job
    from stentor.client.message import Message

_tracing = lru_cache(maxsize=8)(Tracing)


def processing(
    given: Message | Job | list[Message], *, group: str | None = None, tracer_provider: Any = None
) -> AbstractContextManager[Any]:
    """A span `process TOPIC` around a block: the child of the message's context, or linked to those of a list.

    `group` is the consumer group that the messages were handed out by. Without a provider it is that of the process.
    """
    return _tracing(True if tracer_provider is None else tracer_provider).processing(given, group)


def context_of(message: Message | Job) -> Any:
    """The OpenTelemetry context in a message's headers; an empty one if there is none, or none that can be read."""
    return _context_of(message.headers)
