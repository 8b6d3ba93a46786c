"""Producers and subscriptions as a client hands them out: plain ones, or ones that make spans if the client is traced.

Spans are made in classes of their own, so that nobody else pays for the question whether there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stentor.client.producer import AsyncProducer, Producer
from stentor.client.subscription import AsyncSubscription, Subscription
from stentor.errors import MissingPackage

if TYPE_CHECKING:
    from stentor.client.producer_core import ProducerCore
    from stentor.client.subscription_core import SubscriptionCore
    from stentor.client.tracing import Tracing


def tracing_of(tracing: object, client: str) -> Tracing | None:
    """What makes the spans of a client; None if it is not traced. MissingPackage without OpenTelemetry."""
    if tracing is False or tracing is None:
        return None
    try:
        from stentor.client.tracing import Tracing
    except ImportError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise MissingPackage(
            "Tracing needs OpenTelemetry, which is not installed.", hint="pip install 'stentor[otel]'"
        ) from error
    return Tracing(tracing, client)


def sync_producer(core: ProducerCore) -> Producer:
    """For threads."""
    if core.core.tracing is None:
        return Producer(core)
    from stentor.client.traced import TracedProducer

    return TracedProducer(core)


def async_producer(core: ProducerCore) -> AsyncProducer:
    """For tasks."""
    if core.core.tracing is None:
        return AsyncProducer(core)
    from stentor.client.traced import AsyncTracedProducer

    return AsyncTracedProducer(core)


def sync_subscription(core: SubscriptionCore, inbox: Any) -> Subscription:
    """For threads."""
    if core.core.tracing is None:
        return Subscription(core, inbox)
    from stentor.client.traced import TracedSubscription

    return TracedSubscription(core, inbox)


def async_subscription(core: SubscriptionCore, inbox: Any) -> AsyncSubscription:
    """For tasks."""
    if core.core.tracing is None:
        return AsyncSubscription(core, inbox)
    from stentor.client.traced import AsyncTracedSubscription

    return AsyncTracedSubscription(core, inbox)
