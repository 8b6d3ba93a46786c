"""Values of one type: msgspec structs, pydantic models or dataclasses, in JSON or MessagePack.

A value is checked when it is published: it is encoded, and the bytes are decoded as the type, as every reader will.
What was stored and cannot be decoded is a choice: "raise" (DecodeFailed), "skip" it, or hand it out "raw" (bytes).
A message without a value fits only a type that admits None.
"""

from __future__ import annotations

import re
import threading
from dataclasses import is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Union, get_args, get_origin

import msgspec

from stentor.client.deadline import Deadline
from stentor.client.history import AsyncHistory, History
from stentor.client.message import Message
from stentor.client.producer import AsyncProducer, Producer
from stentor.client.subscription import AsyncSubscription, Subscription
from stentor.client.wrapped import AsyncEntered, Entered
from stentor.errors import DecodeFailed, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from datetime import datetime

    from stentor.client.options import (
        Format,
        HeadersLike,
        OnError,
        ProducerStatistics,
        SubscriptionStatistics,
        TimestampLike,
    )
    from stentor.client.producer_core import OnDelivery
    from stentor.client.reader import Event
    from stentor.wire.rows import Headers

T = TypeVar("T")
Inner = TypeVar("Inner")

_AT: Final = re.compile(r"(?P<what>.*) - at `\$\.?(?P<where>.*)`", re.DOTALL)

# msgspec crashes when two threads look at a new type at once.
_decoders_are_made_one_at_a_time = threading.Lock()


class TypedMessage(msgspec.Struct, Generic[T], frozen=True):
    """A message whose value is decoded; everything else is the message's own."""

    message: Message
    value: T

    @property
    def key(self) -> bytes | None:
        """Its key, as bytes."""
        return self.message.key

    @property
    def offset(self) -> int:
        """Its offset in its partition."""
        return self.message.offset

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self.message.topic

    @property
    def partition(self) -> int:
        """The partition of the topic that it is in."""
        return self.message.partition

    @property
    def timestamp(self) -> datetime:
        """When it was published."""
        return self.message.timestamp

    @property
    def timestamp_us(self) -> int:
        """When it was published, in microseconds since 1970, UTC."""
        return self.message.timestamp_us

    @property
    def headers(self) -> Headers:
        """Its headers, in order; a key may repeat."""
        return self.message.headers

    if not TYPE_CHECKING:  # whatever else a message has

        def __getattr__(self, name: str) -> Any:
            return getattr(self.message, name)


class Codec(Generic[T]):
    """Values of one type to bytes and back."""

    def __init__(self, kind: Any, format: Format, on_error: OnError) -> None:  # noqa: A002
        if format not in ("json", "msgpack"):
            raise InvalidArgument(f"format={format!r} is unknown.", hint="Use 'json' or 'msgpack'.")
        if on_error not in ("raise", "skip", "raw"):
            raise InvalidArgument(f"on_error={on_error!r} is unknown.", hint="Use 'raise', 'skip' or 'raw'.")
        self.kind = kind
        self.on_error = on_error
        self._name: str = getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind)
        self._nullable = kind is None or kind is Any or type(None) in _members(kind)
        self._class = kind if _is_nominal(kind) else None
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

    def encode(self, value: T, topic: str, what: str = "") -> bytes | None:
        """A value for a topic as bytes; InvalidArgument says what about it does not fit. `what` says what it is."""
        what = what or f"A value for topic {topic}"
        if value is None and self._nullable:
            return None
        if value is None or (self._class is not None and not isinstance(value, self._class)):
            raise self._refused(what, topic, f"it is of type {type(value).__name__}")
        try:
            plain = value
            if self._pydantic is not None:
                plain = self._pydantic.dump_python(value, mode="json", by_alias=True, warnings=False)
            encoded: bytes = self._encoder.encode(plain)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._refused(what, topic, f"it cannot be encoded: {_first_line(error)}") from error
        try:
            self.decode(encoded)
        except (ValueError, RecursionError) as error:
            raise self._refused(what, topic, self.why(error), _field_of(error)[0]) from error
        return encoded

    def encode_many(self, values: Sequence[T], topic: str) -> list[Any]:
        """The same for many, all or none of them."""
        if not hasattr(values, "__len__"):
            raise InvalidArgument(f"Values are a list, not {type(values).__name__}.")
        return [self.encode(value, topic) for value in values]

    @property
    def name(self) -> str:
        """Of the type."""
        return self._name

    @staticmethod
    def why(error: Exception) -> str:
        """What is wrong with bytes that are no value, and in which field."""
        field, what = _field_of(error)
        return f"its field {field} is wrong: {what}" if field else what

    def _refused(self, what: str, topic: str, why: str, field: str = "") -> InvalidArgument:
        return InvalidArgument(
            f"{what} does not fit {self._name}: {why}.",
            hint="Nothing was published.",
            operation="publish",
            object=topic,
            field=field,
        )

    def decode(self, value: bytes) -> T:
        """Bytes as a value; ValueError, and its like, if they are none."""
        if self._pydantic is None:
            return self._decoder.decode(value)  # type: ignore[no-any-return]
        if self._json:
            return self._pydantic.validate_json(value)  # type: ignore[no-any-return]
        return self._pydantic.validate_python(msgspec.msgpack.decode(value))  # type: ignore[no-any-return]

    def value_of(self, message: Message) -> T:
        """A stored value; DecodeFailed names the place of one that does not fit."""
        value = message.value
        if value is None:
            if self._nullable:
                return None  # type: ignore[return-value]
            raise self._misfit(message, "it is null", f"A type that admits None takes it: {self._name} | None.")
        try:
            return self.decode(value)
        except (ValueError, RecursionError) as error:  # msgspec's and pydantic's own; or a value nested too deeply
            hint = "Open the topic with on_error='skip' or 'raw' to go on."
            raise self._misfit(message, self.why(error), hint) from error

    def _misfit(self, message: Message, why: str, hint: str) -> DecodeFailed:
        place = f"{message.topic}/{message.partition}@{message.offset}"
        return DecodeFailed(
            f"The value at {place} does not fit {self._name}: {why}.",
            hint=hint,
            operation="read",
            object=place,
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
        )

    def message(self, message: Message) -> TypedMessage[T] | None:
        """The typed message; None when it is to be skipped."""
        try:
            return TypedMessage(message, self.value_of(message))
        except DecodeFailed:
            if self.on_error == "raise":
                raise
            return TypedMessage(message, message.value) if self.on_error == "raw" else None  # type: ignore[arg-type]


def _members(kind: Any) -> tuple[Any, ...]:
    """The types that a union names; any other type is its own."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_nominal(kind: Any) -> bool:
    """Whether only its own instances are values of it: a map that looks like one is not."""
    return isinstance(kind, type) and (
        is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or hasattr(kind, "model_validate")
        or hasattr(kind, "__attrs_attrs__")
    )


def _pydantic_adapter(kind: Any) -> Any:
    if not any(hasattr(member, "model_validate") for member in _members(kind)):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _field_of(error: Exception) -> tuple[str, str]:
    """Which field is wrong, as far as the error tells, and what about it."""
    if hasattr(error, "errors"):  # pydantic's
        first = error.errors()[0]
        return ".".join(map(str, first["loc"])), str(first["msg"])
    found = _AT.fullmatch(str(error))
    return (found["where"], found["what"]) if found else ("", _first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


class _Wrapped(Generic[T, Inner]):
    """Something of bytes, and what makes values of them."""

    def __init__(self, inner: Inner, codec: Codec[T]) -> None:
        self._inner = inner
        self._codec = codec


class _Passing(_Wrapped[T, Inner]):
    """Passes everything but values through to what it wraps. Not for producers: bytes would pass unchecked."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)


# --- producers ----------------------------------------------------------------------------------


class TypedProducer(_Wrapped[T, Producer], Entered[Producer]):
    """A producer of values of one type. What does not fit is refused at once, and nothing of it is sent."""

    @property
    def topic(self) -> str:
        return self._inner.topic

    def send(
        self,
        value: T,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a value over; see Producer.send."""
        encoded = self._codec.encode(value, self._inner.topic)
        self._inner.send(encoded, key, headers, timestamp, partition, on_delivery)

    def send_many(
        self, values: Sequence[T], keys: Sequence[bytes | None] | None = None, *, partition: int | None = None
    ) -> None:
        """Hand many values over; all are checked before any of them is sent."""
        self._inner.send_many(self._codec.encode_many(values, self._inner.topic), keys, partition=partition)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; PublishError (.failed) for what was not."""
        self._inner.flush(timeout)

    def statistics(self) -> ProducerStatistics:
        """Counts since the producer was made."""
        return self._inner.statistics()


class AsyncTypedProducer(_Wrapped[T, AsyncProducer], AsyncEntered[AsyncProducer]):
    """The same for `async` code."""

    @property
    def topic(self) -> str:
        return self._inner.topic

    async def send(
        self,
        value: T,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a value over; see AsyncProducer.send."""
        encoded = self._codec.encode(value, self._inner.topic)
        await self._inner.send(encoded, key, headers, timestamp, partition, on_delivery)

    async def send_many(
        self, values: Sequence[T], keys: Sequence[bytes | None] | None = None, *, partition: int | None = None
    ) -> None:
        """Hand many values over; all are checked before any of them is sent."""
        await self._inner.send_many(self._codec.encode_many(values, self._inner.topic), keys, partition=partition)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; PublishError (.failed) for what was not."""
        await self._inner.flush(timeout)

    def statistics(self) -> ProducerStatistics:
        """Counts since the producer was made."""
        return self._inner.statistics()


# --- subscriptions ------------------------------------------------------------------------------


class TypedSubscription(_Passing[T, Subscription], Entered[Subscription]):
    """A live subscription to values of one type."""

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        for message in self._inner:
            typed = self._codec.message(message)
            if typed is not None:
                yield typed

    def get(self, timeout: float | None = None) -> TypedMessage[T]:
        """The next typed message; those that do not fit follow `on_error`."""
        deadline = Deadline(timeout)
        while True:
            typed = self._codec.message(self._inner.get(deadline.left()))
            if typed is not None:
                return typed

    def events(self) -> list[Event]:
        """What happened since the last call: skipped ranges, topics found or gone."""
        return self._inner.events()

    def statistics(self) -> SubscriptionStatistics:
        """Lag and position of each partition."""
        return self._inner.statistics()


class AsyncTypedSubscription(_Passing[T, AsyncSubscription], AsyncEntered[AsyncSubscription]):
    """The same for `async` code."""

    async def __aiter__(self) -> AsyncIterator[TypedMessage[T]]:
        async for message in self._inner:
            typed = self._codec.message(message)
            if typed is not None:
                yield typed

    async def get(self, timeout: float | None = None) -> TypedMessage[T]:
        """The next typed message; those that do not fit follow `on_error`."""
        deadline = Deadline(timeout)
        while True:
            typed = self._codec.message(await self._inner.get(deadline.left()))
            if typed is not None:
                return typed

    def events(self) -> list[Event]:
        """What happened since the last call: skipped ranges, topics found or gone."""
        return self._inner.events()

    def statistics(self) -> SubscriptionStatistics:
        """Lag and position of each partition."""
        return self._inner.statistics()


# --- bounded reads ------------------------------------------------------------------------------


class TypedHistory(_Passing[T, History], Entered[History]):
    """A bounded read of values of one type. Its tables are those of History: values as stored."""

    @property
    def ends(self) -> dict[str, dict[int, int]]:
        """The offset before which it ends, by topic and partition."""
        return self._inner.ends

    @property
    def sure(self) -> bool:
        """Whether that was all that was committed when the read began. False only with `stale="allow"`."""
        return self._inner.sure

    @property
    def compacted(self) -> int:
        """How many messages, at most, compactions had removed from what was read so far."""
        return self._inner.compacted

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        for message in self._inner:
            typed = self._codec.message(message)
            if typed is not None:
                yield typed

    def batches(self) -> Iterator[Any]:
        """As pyarrow.RecordBatch."""
        return self._inner.batches()

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return self._inner.to_arrow()

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return self._inner.to_pandas()

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return self._inner.to_polars()


class AsyncTypedHistory(_Passing[T, AsyncHistory], AsyncEntered[AsyncHistory]):
    """The same for `async` code."""

    @property
    def ends(self) -> dict[str, dict[int, int]]:
        """The offset before which it ends, by topic and partition."""
        return self._inner.ends

    @property
    def sure(self) -> bool:
        """Whether that was all that was committed when the read began. False only with `stale="allow"`."""
        return self._inner.sure

    @property
    def compacted(self) -> int:
        """How many messages, at most, compactions had removed from what was read so far."""
        return self._inner.compacted

    async def __aiter__(self) -> AsyncIterator[TypedMessage[T]]:
        async for message in self._inner:
            typed = self._codec.message(message)
            if typed is not None:
                yield typed

    def batches(self) -> AsyncIterator[Any]:
        """As pyarrow.RecordBatch."""
        return self._inner.batches()

    async def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return await self._inner.to_arrow()

    async def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return await self._inner.to_pandas()

    async def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return await self._inner.to_polars()
