"""A topic of a client by itself: `client.topic("orders", Order)` is a `Topic[Order]`, without a type a `PlainTopic`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from stentor.client.typed import (
    AsyncTypedHistory,
    AsyncTypedProducer,
    AsyncTypedSubscription,
    Codec,
    TypedHistory,
    TypedProducer,
    TypedSubscription,
)

if TYPE_CHECKING:
    from typing import Unpack

    from stentor.client.admin import Offsets
    from stentor.client.async_client import AsyncClient
    from stentor.client.history import AsyncHistory, History
    from stentor.client.message import Receipt
    from stentor.client.options import (
        OffsetsOptions,
        ProducerOptions,
        PublishOptions,
        ReadOptions,
        SubscribeOptions,
    )
    from stentor.client.positions import Place
    from stentor.client.producer import AsyncProducer, Producer
    from stentor.client.subscription import AsyncSubscription, Subscription
    from stentor.client.sync_client import Client
    from stentor.wire.messages import TopicInfo

T = TypeVar("T")


class _Named:
    """What both kinds of topic share."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def offsets(self, at: Place = "latest", **options: Unpack[OffsetsOptions]) -> Offsets:
        """The offset of a position in each partition; see Client.offsets."""
        return self._client.offsets(self.name, at, **options)

    def describe(self, *, timeout: float | None = None) -> TopicInfo:
        """Settings and partitions."""
        return self._client.describe_topic(self.name, timeout=timeout)


class PlainTopic(_Named):
    """A topic whose values are bytes."""

    def publish(self, value: bytes | str | None, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish one value; see Client.publish."""
        return self._client.publish(self.name, value, **options)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer of this topic; see Client.producer."""
        return self._client.producer(self.name, **options)

    def subscribe(self, **options: Unpack[SubscribeOptions]) -> Subscription:
        """A subscription to this topic; see Client.subscribe."""
        return self._client.subscribe(self.name, **options)

    def read(self, **options: Unpack[ReadOptions]) -> History:
        """A bounded read of this topic; see Client.read."""
        return self._client.read(self.name, **options)


class Topic(_Named, Generic[T]):
    """A topic whose values are of one type."""

    def __init__(self, client: Client, name: str, codec: Codec[T]) -> None:
        super().__init__(client, name)
        self._codec = codec

    def publish(self, value: T, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish one value; InvalidArgument if it does not fit the type. See Client.publish."""
        return self._client.publish(self.name, self._codec.encode(value, self.name), **options)

    def producer(self, **options: Unpack[ProducerOptions]) -> TypedProducer[T]:
        """A producer of values of this type; see Client.producer."""
        return TypedProducer(self._client.producer(self.name, **options), self._codec)

    def subscribe(self, **options: Unpack[SubscribeOptions]) -> TypedSubscription[T]:
        """A subscription to this topic; see Client.subscribe."""
        return TypedSubscription(self._client.subscribe(self.name, **options), self._codec)

    def read(self, **options: Unpack[ReadOptions]) -> TypedHistory[T]:
        """A bounded read of this topic; see Client.read."""
        return TypedHistory(self._client.read(self.name, **options), self._codec)


class _AsyncNamed:
    """The same for `async` code; every call is awaited."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def offsets(self, at: Place = "latest", **options: Unpack[OffsetsOptions]) -> Offsets:
        """The offset of a position in each partition; see Client.offsets."""
        return await self._client.offsets(self.name, at, **options)

    async def describe(self, *, timeout: float | None = None) -> TopicInfo:
        """Settings and partitions."""
        return await self._client.describe_topic(self.name, timeout=timeout)


class AsyncPlainTopic(_AsyncNamed):
    """A topic whose values are bytes, for `async` code."""

    async def publish(self, value: bytes | str | None, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish one value; see AsyncClient.publish."""
        return await self._client.publish(self.name, value, **options)

    async def producer(self, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """A producer of this topic; see Client.producer."""
        return await self._client.producer(self.name, **options)

    async def subscribe(self, **options: Unpack[SubscribeOptions]) -> AsyncSubscription:
        """A subscription to this topic; see Client.subscribe."""
        return await self._client.subscribe(self.name, **options)

    async def read(self, **options: Unpack[ReadOptions]) -> AsyncHistory:
        """A bounded read of this topic; see Client.read."""
        return await self._client.read(self.name, **options)


class AsyncTopic(_AsyncNamed, Generic[T]):
    """A topic whose values are of one type, for `async` code."""

    def __init__(self, client: AsyncClient, name: str, codec: Codec[T]) -> None:
        super().__init__(client, name)
        self._codec = codec

    async def publish(self, value: T, **options: Unpack[PublishOptions]) -> Receipt:
        """Publish one value; InvalidArgument if it does not fit the type. See AsyncClient.publish."""
        return await self._client.publish(self.name, self._codec.encode(value, self.name), **options)

    async def producer(self, **options: Unpack[ProducerOptions]) -> AsyncTypedProducer[T]:
        """A producer of values of this type; see Client.producer."""
        return AsyncTypedProducer(await self._client.producer(self.name, **options), self._codec)

    async def subscribe(self, **options: Unpack[SubscribeOptions]) -> AsyncTypedSubscription[T]:
        """A subscription to this topic; see Client.subscribe."""
        return AsyncTypedSubscription(await self._client.subscribe(self.name, **options), self._codec)

    async def read(self, **options: Unpack[ReadOptions]) -> AsyncTypedHistory[T]:
        """A bounded read of this topic; see Client.read."""
        return AsyncTypedHistory(await self._client.read(self.name, **options), self._codec)
