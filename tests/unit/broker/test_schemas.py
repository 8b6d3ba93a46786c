"""A head takes rows of a schema that its topic has, and nothing else, whoever sends it."""

import msgspec
import pyarrow as pa
import pytest

import stentor
from stentor.broker.catalogue import encode, topic_key
from stentor.client.tabular_values import columns_of
from stentor.errors import SchemaRefused
from stentor.wire import arrow_body, batch, frames, messages
from stentor.wire.frames import Kind
from stentor.wire.schemas import SchemaColumn

SCHEMA = pa.schema([pa.field("n", pa.int64())])


def publish(connection, topic_id, schema_id):
    """Publish one row under a schema id; the answer's kind and body."""
    rows = arrow_body.record_batch([1], [None], [b'{"n": 1}'], None)
    encoded = batch.encode_arrow(rows, schema_id=schema_id)
    header = batch.address(encoded, topic_id=topic_id, partition=0, producer_id=0, generation=0, sequence=0)
    connection.send(Kind.PUBLISH, 99, bytes(header) + bytes(encoded.body), frames.Ack.ALL)
    while True:
        kind, correlation, body = connection.receive()
        if correlation == 99:
            return kind, body


@pytest.mark.parametrize("schema_id", [0, 2, 65_535])
def test_a_batch_of_no_known_schema_is_refused(local, client, raw, schema_id):
    topic = client.tabular("orders", SCHEMA)
    topic_id = client.describe_topic("orders").id
    kind, body = publish(raw(local.url).greet(), topic_id, schema_id)
    assert kind == Kind.ERROR
    refused = messages.raised(messages.decode(body, messages.Failure))
    assert isinstance(refused, SchemaRefused)
    assert "orders" in refused.message
    assert refused.retriable == (schema_id > 1), "a version that is not known yet may be, in a moment"
    assert publish(raw(local.url).greet(), topic_id, 1)[0] == Kind.PUBLISHED
    assert topic.read().to_arrow().to_pydict() == {"n": [1]}


def test_a_topic_without_schema_takes_no_rows_of_one(local, client, raw):
    client.create_topic("plain")
    kind, body = publish(raw(local.url).greet(), client.describe_topic("plain").id, 1)
    assert kind == Kind.ERROR
    assert messages.decode(body, messages.Failure).code == "schema_refused"


@pytest.mark.parametrize("send", ["publish", "send", "send_many", "send_batch"])
def test_ordinary_messages_are_refused_with_the_way_to_go(client, send):
    client.tabular("orders", SCHEMA)
    with pytest.raises(stentor.StentorError, match=r"has a schema.*client\.tabular\('orders'\)"):  # noqa: PT012
        if send == "publish":
            client.publish("orders", b'{"n": 1}')
        else:
            data = {"send": b"x", "send_many": [b"x"], "send_batch": pa.table({"value": ["x"]})}[send]
            with client.producer("orders") as producer:
                getattr(producer, send)(data)
    assert client.offsets("orders") == {0: 0}


@pytest.mark.parametrize("rival", [SCHEMA, pa.schema([*SCHEMA, pa.field("a", pa.string())])], ids=["same", "other"])
def test_who_loses_a_race_looks_again(local, client, monkeypatch, rival):
    """Another broker has swapped in a version that this one has not heard of."""
    client.create_topic("orders")
    store, catalogue = local.inner.parts.ground.store, local.inner.parts.ground.catalogue
    swap, rivals = store.swap, [rival]

    async def swap_behind(**wish):
        if rivals:
            topic = catalogue.topics["orders"]
            columns = columns_of(rivals.pop(), "orders")
            record = msgspec.structs.replace(topic.record, schemas=[columns])
            await swap(expect={topic_key("orders"): topic.revision}, put={topic_key("orders"): encode(record)})
        return await swap(**wish)

    monkeypatch.setattr(store, "swap", swap_behind)
    if rival is SCHEMA:
        assert client.tabular("orders", SCHEMA).version == 1
    else:
        with pytest.raises(SchemaRefused, match="column a is missing"):
            client.tabular("orders", SCHEMA)
    assert not rivals, "the other one came first"
    assert len(client.describe_topic("orders").schemas) == 1


def test_of_two_who_register_one_after_the_other_the_second_builds_on_the_first(client):
    client.tabular("orders", SCHEMA)
    one = pa.schema([*SCHEMA, pa.field("a", pa.string())])
    two = pa.schema([*SCHEMA, pa.field("b", pa.string())])
    assert client.tabular("orders", one).version == 2
    with pytest.raises(SchemaRefused, match="column a is missing"):
        client.tabular("orders", two)


def test_registering_needs_a_topic_and_a_schema(local, client, raw):
    connection = raw(local.url).greet()
    columns = [SchemaColumn(name="n", type="int64")]
    with pytest.raises(stentor.TopicNotFound):
        connection.ask(messages.RegisterSchema(name="nowhere", columns=columns))
    client.create_topic("plain")
    with pytest.raises(SchemaRefused, match="two columns"):
        connection.ask(messages.RegisterSchema(name="plain", columns=columns * 2))
    assert client.describe_topic("plain").schemas == []


def test_a_topic_made_anew_has_no_schema(client):
    client.tabular("orders", SCHEMA)
    client.delete_topic("orders")
    client.create_topic("orders")
    assert client.publish("orders", "text").offset == 0


def test_only_a_description_carries_schemas(client):
    client.tabular("orders", SCHEMA)
    assert client.describe_topic("orders").schemas == [[SchemaColumn(name="n", type="int64")]]
    assert client.topics()[0].schemas == []
