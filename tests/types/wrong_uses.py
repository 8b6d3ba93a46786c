"""Wrong uses of the API. A type checker must refuse each line that is marked `wrong`, and no other.

The file is never run: test_types.py hands it to mypy.
"""

# ruff: noqa: ARG005, B018, DTZ005

from datetime import datetime, timedelta

import msgspec

import stentor


class Order(msgspec.Struct):
    id: int
    item: str


class Parcel(msgspec.Struct):
    weight: float


def publishing(client: stentor.Client) -> None:
    client.publish("orders", b"x", ack="all", headers={"a": "b"}, timestamp=datetime.now())
    client.publish("orders", b"x", headers=[("a", b"1"), ("a", None)], timestamp=0)
    client.publish("orders", b"x", ack="everybody")  # wrong: no such level
    client.publish("orders", 5)  # wrong: a value is bytes or text
    client.publish("orders", b"x", key=42)  # wrong: so is a key
    client.publish("orders", b"x", acks="all")  # wrong: no such option
    client.publish("orders", b"x", timeout="5s")  # wrong: seconds are a number
    client.publish("orders", b"x", headers={"a": 5})  # wrong: a header is bytes or text
    client.publish("orders", b"x", timestamp="today")  # wrong: a time is a datetime
    client.publish("orders", b"x", partition="0")  # wrong: a partition is a number


def producing(client: stentor.Client) -> None:
    with client.producer("orders", ack="head", compression="zstd") as producer:
        producer.send(b"x", "key")
        producer.send_many([b"x"], [b"key"])
        producer.send({"id": 1})  # wrong: a value is bytes or text
        producer.send_many(["x"])  # wrong: many values are bytes
        producer.send(b"x", on_delivery=lambda receipt: None)  # wrong: it is called with two arguments
    client.producer("orders", compression="gzip")  # wrong: no such compression
    client.producer("orders", ack="one")  # wrong: no such level
    client.producer("orders", linger_ms=5)  # wrong: no such option


def reading(client: stentor.Client) -> None:
    with client.subscribe("orders", start=timedelta(hours=-1), on_slow="skip", max_lag=10) as subscription:
        message = subscription.get(timeout=1)
        print(message.offset + 1, (message.value or b"").decode())
        message.value.decode()  # wrong: a message may have no value
        message.payload  # wrong: no such field
    client.read("orders", start=stentor.Last(5), end="now").to_arrow()
    client.subscribe("orders", start="yesterday")  # wrong: no such position
    client.subscribe("orders", on_slow="give_up")  # wrong: no such choice
    client.subscribe("orders", stale="yes")  # wrong: no such choice
    client.read("orders", stale=True)  # wrong: the same
    client.read("orders", on_slow="skip")  # wrong: a bounded read is never slow
    client.offsets("orders", "beginning")  # wrong: no such position
    client.subscribe(5)  # wrong: topics are named


def administration(client: stentor.Client) -> None:
    client.create_topic("orders", partitions=3, flush="interval", placement="spread")
    client.create_topic("orders", flush="sometimes")  # wrong: no such choice
    client.create_topic("orders", partitions="3")  # wrong: a number
    client.create_topic("orders", partition=3)  # wrong: no such setting
    client.alter_topic("orders", retention=5)  # wrong: no such setting
    client.alter_topic("orders", placement="everywhere")  # wrong: no such choice


def typed(client: stentor.Client) -> None:
    orders = client.topic("orders", Order)
    orders.publish(Order(1, "tea"), key="1", ack="quorum")
    orders.publish(Parcel(1.5))  # wrong: no order
    orders.publish({"id": 1, "item": "tea"})  # wrong: a map is no order
    orders.publish(None)  # wrong: an order is never null
    orders.publish(Order(1, "tea"), ack="some")  # wrong: no such level
    with orders.producer(compression="lz4") as producer:
        producer.send(Order(2, "milk"), "2")
        producer.send_many([Order(3, "tea")], [b"3"])
        producer.send(b"bytes")  # wrong: no order
        producer.send_many([b"bytes"])  # wrong: no orders
        producer.sendd(Order(2, "milk"))  # wrong: no such method
    for message in orders.read(start="earliest"):
        print(message.value.item.upper(), message.value.id + 1, message.offset, message.key, message.timestamp)
        message.value.price  # wrong: an order has none
        message.value.id.upper()  # wrong: a number is no text
    orders.read(beginning=0)  # wrong: no such option
    orders.subscribe(start="soon")  # wrong: no such position
    parcels: stentor.Topic[Parcel] = client.topic("orders", Order)  # wrong: those are orders
    print(parcels)
    client.topic("orders", Order, format="xml")  # wrong: no such format
    client.topic("orders", Order, on_error="cry")  # wrong: no such choice
    raw = client.topic("orders", Order, on_error="raw")
    for found in raw.read():
        found.value.item  # wrong: it may be bytes
    perhaps: stentor.Topic[Order | None] = client.topic("orders", Order | None)
    perhaps.publish(None)
    perhaps.publish("nothing")  # wrong: neither an order nor None
    client.topic("plain").publish(Order(1, "tea"))  # wrong: without a type, values are bytes or text


def tables(client: stentor.Client) -> None:
    sales: stentor.TabularTopic = client.tabular("sales")
    with sales.producer(compression="zstd") as producer:
        producer.send_batch([], key="id", partition=0)
        producer.send_batch([], key=5)  # wrong: a column is named
        producer.send(b"x")  # wrong: a tabular topic takes tables
    sales.read(start="earliest").to_arrow()
    sales.read(start="first")  # wrong: no such position
    sales.producer(ack="one")  # wrong: no such level
    client.tabular(5)  # wrong: a topic is named
    client.tabular("sales", timeout="1s")  # wrong: seconds are a number


async def awaited(client: stentor.AsyncClient) -> None:
    await client.publish("orders", b"x", ack="head")
    await client.publish("orders", b"x", ack="every")  # wrong: no such level
    async with await client.producer("orders", compression="lz4", batch_messages=10) as producer:
        await producer.send(5)  # wrong: a value is bytes or text
    await client.producer("orders", compression="brotli")  # wrong: no such compression
    await client.producer("orders", batch="10")  # wrong: no such option
    async with await client.subscribe("orders", start="earliest", timeout=5) as subscription:
        print((await subscription.get()).offset)
    await client.subscribe("orders", on_slow="wait")  # wrong: no such choice
    await client.subscribe("orders", begin="earliest")  # wrong: no such option
    await client.read("orders", end="tomorrow")  # wrong: no such position
    await client.create_topic("orders", segments=5)  # wrong: no such setting
    orders = client.topic("orders", Order)
    await orders.publish(Order(1, "tea"))
    await orders.publish("tea")  # wrong: no order
    async for message in await orders.read():
        print(message.value.item)
        message.value.price  # wrong: an order has none
    async with await orders.producer() as sender:
        await sender.send(Parcel(1.0))  # wrong: no order
