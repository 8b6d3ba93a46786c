"""Typed topics: values as msgspec structs, pydantic models or dataclasses, in JSON or MessagePack.

What cannot be decoded is a choice: "raise" (DecodeFailed), "skip" it, or hand it out "raw" (bytes).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

import msgspec

from stentor.client.deadline import Deadline
from stentor.errors import DecodeFailed, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from stentor.client.message import Message

T = TypeVar("T")
OnError = Literal["raise", "skip", "raw"]

# msgspec crashes when two threads look at a new type at once.
_decoders_are_made_one_at_a_time = threading.Lock()


class TypedMessage(msgspec.Struct, Generic[T], frozen=True):
    """A message whose value is decoded; everything else is the message's own."""

    message: Message
    value: T | bytes | None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)


class Codec(Generic[T]):
    """Values of one type to bytes and back."""

    def __init__(self, kind: type[T] | None, format: str, on_error: OnError) -> None:  # noqa: A002
        if format not in ("json", "msgpack"):
            raise InvalidArgument(f"format={format!r} is unknown.", hint="Use 'json' or 'msgpack'.")
        if on_error not in ("raise", "skip", "raw"):
            raise InvalidArgument(f"on_error={on_error!r} is unknown.", hint="Use 'raise', 'skip' or 'raw'.")
        self.kind = kind
        self.on_error = on_error
        self._json = format == "json"
        self._pydantic = _pydantic_adapter(kind)
        module = msgspec.json if self._json else msgspec.msgpack
        self._encoder = module.Encoder()
        self._decoder: Any = None
        if self._pydantic is None:
            try:
                with _decoders_are_made_one_at_a_time:
                    self._decoder = module.Decoder(Any if kind is None else kind)
            except TypeError as error:
                raise InvalidArgument(
                    f"{kind!r} cannot be used as a type: {error}.",
                    hint="Use a msgspec Struct, dataclass or pydantic model.",
                ) from error

    def encode(self, value: T | None) -> bytes | None:
        if value is None:
            return None
        try:
            if self._pydantic is not None:
                value = self._pydantic.dump_python(value, mode="json")
            encoded: bytes = self._encoder.encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"The value cannot be encoded: {error}.") from error
        return encoded

    def decode(self, value: bytes | None) -> T | None:
        if value is None:
            return None
        try:
            if self._pydantic is None:
                return self._decoder.decode(value)  # type: ignore[no-any-return]
            if self._json:
                return self._pydantic.validate_json(value)  # type: ignore[no-any-return]
            return self._pydantic.validate_python(msgspec.msgpack.decode(value))  # type: ignore[no-any-return]
        except (ValueError, RecursionError) as error:  # msgspec's and pydantic's own; or a value nested too deeply
            kind = getattr(self.kind, "__name__", str(self.kind))
            why = str(error).partition("\n")[0]
            raise DecodeFailed(
                f"A value is not a {kind}: {why}.",
                hint="Open the topic with on_error='skip' or 'raw' to go on.",
            ) from error

    def message(self, message: Message) -> TypedMessage[T] | None:
        """The typed message; None when it is to be skipped."""
        try:
            return TypedMessage(message, self.decode(message.value))
        except DecodeFailed as error:
            if self.on_error == "raise":
                error.object = f"{message.topic}/{message.partition}@{message.offset}"
                raise
            return TypedMessage(message, message.value) if self.on_error == "raw" else None


def _pydantic_adapter(kind: Any) -> Any:
    if kind is None or not hasattr(kind, "model_validate"):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


class _Wrapped:
    """Passes everything but values through to what it wraps."""

    def __init__(self, inner: Any, codec: Codec[Any]) -> None:
        self._inner = inner
        self._codec = codec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class TypedProducer(_Wrapped):
    """A producer of typed values."""

    def send(self, value: Any, key: Any = None, **options: Any) -> Any:
        return self._inner.send(self._codec.encode(value), key, **options)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.__aexit__(*error)


class TypedReader(_Wrapped):
    """A subscription or history of typed values."""

    def __iter__(self) -> Iterator[Any]:
        for message in self._inner:
            typed = self._codec.message(message)
            if typed is not None:
                yield typed

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for message in self._inner:
            typed = self._codec.message(message)
            if typed is not None:
                yield typed

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._inner.__aexit__(*error)


class TypedSubscription(TypedReader):
    """A live subscription of typed values."""

    def get(self, timeout: float | None = None) -> Any:
        """The next typed message; undecodable ones follow `on_error`."""
        deadline = Deadline(timeout)
        while True:
            typed = self._codec.message(self._inner.get(deadline.left()))
            if typed is not None:
                return typed


class AsyncTypedSubscription(TypedReader):
    """The same for `async` code."""

    async def get(self, timeout: float | None = None) -> Any:
        """The next typed message."""
        deadline = Deadline(timeout)
        while True:
            typed = self._codec.message(await self._inner.get(deadline.left()))
            if typed is not None:
                return typed


class Topic:
    """A topic of a client, with typed values if a type was given."""

    def __init__(self, client: Any, name: str, codec: Codec[Any] | None) -> None:
        self._client = client
        self.name = name
        self._codec = codec

    def publish(self, value: Any, **options: Any) -> Any:
        """Publish one value; see Client.publish."""
        return self._client.publish(self.name, value if self._codec is None else self._codec.encode(value), **options)

    def producer(self, **options: Any) -> Any:
        """A producer of this topic."""
        inner = self._client.producer(self.name, **options)
        return inner if self._codec is None else TypedProducer(inner, self._codec)

    def subscribe(self, **options: Any) -> Any:
        """A subscription to this topic."""
        inner = self._client.subscribe(self.name, **options)
        return inner if self._codec is None else TypedSubscription(inner, self._codec)

    def read(self, **options: Any) -> Any:
        """A bounded read of this topic."""
        inner = self._client.read(self.name, **options)
        return inner if self._codec is None else TypedReader(inner, self._codec)

    def offsets(self, at: Any = "latest", **options: Any) -> Any:
        """The offset of a position in each partition; see Client.offsets."""
        return self._client.offsets(self.name, at, **options)

    def describe(self) -> Any:
        """Settings and partitions."""
        return self._client.describe_topic(self.name)


class AsyncTopic(Topic):
    """The same for `async` code; every method is awaited."""

    async def producer(self, **options: Any) -> Any:
        inner = await self._client.producer(self.name, **options)
        return inner if self._codec is None else TypedProducer(inner, self._codec)

    async def subscribe(self, **options: Any) -> Any:
        inner = await self._client.subscribe(self.name, **options)
        return inner if self._codec is None else AsyncTypedSubscription(inner, self._codec)

    async def read(self, **options: Any) -> Any:
        inner = await self._client.read(self.name, **options)
        return inner if self._codec is None else TypedReader(inner, self._codec)
