"""Typed topics: only values of the type go in, and what does not fit on the way out is named by its place."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest

import stentor


class Line(msgspec.Struct):
    sku: str
    price: float


class Order(msgspec.Struct):
    id: int
    lines: list[Line] = []


@dataclass
class OrderData:
    id: int
    tags: list[str] = field(default_factory=list)


class OrderModel(pydantic.BaseModel):
    id: int
    tags: list[str] = []


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(alias="no")


WRONG: dict[str, tuple[Any, Any, str]] = {
    "a field of a struct": (Order, Order("one"), "id"),
    "a field within a list": (Order, Order(1, [Line("tea", 1.0), Line("milk", "dear")]), "lines[1].price"),
    "a field of a dataclass": (OrderData, OrderData("one"), "id"),
    "a field of a model": (OrderModel, OrderModel.model_construct(id="one"), "id"),
    "a number that is none": (Order, Order(1, [Line("tea", float("nan"))]), "lines[0].price"),
    "a map in place of a struct": (Order, {"id": 1}, ""),
    "a map in place of a dataclass": (OrderData, {"id": 1}, ""),
    "another struct": (Order, Line("tea", 1.0), ""),
    "bytes": (Order, b'{"id": 1}', ""),
    "nothing": (Order, None, ""),
    "a text in place of a number": (int, "5", ""),
    "an element of a list": (list[int], [1, "two"], "[1]"),
}


@pytest.mark.parametrize("how", ["publish", "send"])
@pytest.mark.parametrize(("kind", "value", "where"), WRONG.values(), ids=WRONG.keys())
def test_a_value_that_does_not_fit_is_refused_with_topic_and_field(client, kind, value, where, how):
    client.create_topic("typed.wrong", exist_ok=True)
    before = client.offsets("typed.wrong")
    topic = client.topic("typed.wrong", kind)
    with topic.producer() as producer, pytest.raises(stentor.InvalidArgument, match=r"topic typed\.wrong") as caught:
        (topic.publish if how == "publish" else producer.send)(value)
    assert caught.value.detail["field"] == where
    assert caught.value.object == "typed.wrong"
    if where:
        assert f"field {where} " in caught.value.message
    assert client.offsets("typed.wrong") == before, "nothing was published"


@pytest.mark.parametrize("kind", [Order, OrderData, OrderModel, Aliased], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_value_that_fits_comes_back_as_it_was(client, kind, encoding):
    value = Aliased(no=5) if kind is Aliased else kind(id=1)
    topic = client.topic(f"typed.fits.{kind.__name__}.{encoding}", kind, format=encoding)
    topic.publish(value, key="k", headers={"a": "b"})
    (message,) = topic.read()
    assert message.value == value
    assert type(message.value) is kind
    assert (message.key, message.offset, message.partition, message.headers) == (b"k", 0, 0, [("a", b"b")])
    assert (message.topic, message.timestamp_us) == (topic.name, message.message.timestamp_us)
    assert message.timestamp.timestamp() == pytest.approx(message.timestamp_us / 1e6)


@pytest.mark.parametrize("kind", [Order, OrderData, OrderModel], ids=lambda kind: kind.__name__)
def test_a_stored_value_that_does_not_fit_is_named_by_its_place(client, kind):
    name = f"typed.stored.{kind.__name__}"
    client.create_topic(name, partitions=2)
    topic = client.topic(name, kind)
    topic.publish(kind(id=1), partition=1)
    client.publish(name, b'{"id": "one"}', partition=1)
    with pytest.raises(stentor.DecodeFailed, match=f"{name}/1@1 .*{kind.__name__}.*field id ") as caught:
        list(topic.read())
    assert caught.value.detail == {"topic": name, "partition": 1, "offset": 1}
    assert caught.value.object == f"{name}/1@1"


def test_a_message_without_value_fits_a_type_that_admits_it(client):
    client.publish("typed.null", None)
    with pytest.raises(stentor.DecodeFailed, match=r"typed.null/0@0.*null.*None"):
        list(client.topic("typed.null", Order).read())
    for kind in (Order | None, OrderData | None, OrderModel | None):
        topic = client.topic("typed.null", kind)
        topic.publish(None)
        assert {message.value for message in topic.read()} == {None}


def test_many_values_are_checked_before_any_of_them_is_sent(client):
    topic = client.topic("typed.many", Order)
    with topic.producer() as producer:
        with pytest.raises(stentor.InvalidArgument, match="field id "):
            producer.send_many([Order(1), Order("two")])
        with pytest.raises(stentor.InvalidArgument):
            producer.send_many([b'{"id": 1}'])
        with pytest.raises(stentor.InvalidArgument):
            producer.send_many(5)
        with pytest.raises(AttributeError):
            producer.send_batch  # noqa: B018 - bytes would pass unchecked
        producer.send_many([Order(1), Order(2)], [b"a", b"b"])
    assert [(message.key, message.value.id) for message in topic.read()] == [(b"a", 1), (b"b", 2)]


def test_async_topics_do_the_same(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            topic = client.topic("typed.async", Order)
            with pytest.raises(stentor.InvalidArgument, match=r"topic typed.async .*field id "):
                await topic.publish(Order("one"))
            async with await topic.producer() as producer:
                with pytest.raises(stentor.InvalidArgument, match=r"topic typed.async .*field id "):
                    await producer.send(Order("one"))
                await producer.send(Order(1), "k")
            async with await topic.subscribe(start="earliest") as subscription:
                assert (await subscription.get(timeout=5)).value == Order(1)
            await client.publish("typed.async", "{}")
            with pytest.raises(stentor.DecodeFailed, match=r"typed.async/0@1"):
                [message async for message in await topic.read()]
            assert await topic.offsets() == {0: 2}
            assert (await topic.describe()).name == "typed.async"

    asyncio.run(work())


def test_an_untyped_topic_has_bytes_for_values(client):
    topic = client.topic("typed.none")
    topic.publish("text")
    with topic.producer() as producer:
        producer.send(b"bytes")
    assert [message.value for message in topic.read()] == [b"text", b"bytes"]
