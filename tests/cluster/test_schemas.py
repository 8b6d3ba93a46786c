"""Schemas in a cluster: every head knows them, whoever registered them, and the next head does, too."""

import pyarrow as pa
import pytest

import stentor

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture
def client(three):
    with three.client(timeout=20) as connected:
        yield connected
        connected.delete_topic("rows")


def test_rows_may_be_sent_as_soon_as_their_schema_is_registered_and_outlive_heads(three, client):
    client.create_topic("rows", partitions=3)
    sent = 0
    for version in range(1, 4):  # the heads of the partitions are three brokers; one of them was asked
        schema = pa.schema([*SCHEMA, *(pa.field(f"c{number}", pa.string()) for number in range(1, version))])
        topic = client.tabular("rows", schema)
        assert topic.version == version
        with topic.producer() as producer:
            for partition in range(3):
                producer.send_batch(pa.table({"n": [sent]}), partition=partition)
                sent += 1
    head = client.describe_topic("rows").partitions[0].chain[0]
    three.kill(head)
    with topic.producer() as producer:
        producer.send_batch(pa.table({"n": [sent]}), partition=0)
    with pytest.raises(stentor.SchemaRefused):
        client.publish("rows", "no row", partition=0)
    assert client.tabular("rows").version == 3
    assert sorted(topic.read().to_arrow()["n"].to_pylist()) == list(range(sent + 1))
    three.restart(head)
