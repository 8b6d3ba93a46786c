"""Clients: one API in two faces, errors in words, no hangs."""

import asyncio
import multiprocessing
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pydantic
import pytest

import stentor
from stentor import limits
from stentor.client.url import parse_url
from stentor.testing import broker


def test_the_public_names_are_these_and_all_load():
    assert set(stentor.__all__) >= {"Client", "AsyncClient", "connect", "connect_async", "Last", "StentorError"}
    for name in stentor.__all__:
        assert getattr(stentor, name) is not None
    with pytest.raises(AttributeError):
        _ = stentor.nonsense


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("stentor://localhost:7440", ["localhost:7440"]),
        ("a:1,b:2", ["a:1", "b:2"]),
        ("stentor://a,b:9/", ["a:7440", "b:9"]),
        ("[::1]:7440", ["[::1]:7440"]),
        ("[::1], ::1:7441", ["[::1]:7440", "[::1]:7441"]),
    ],
)
def test_urls_name_one_or_more_addresses(url, addresses):
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    "url",
    [
        "http://x",
        "a:b",
        "a:0",
        "a:99999",
        "",
        "stentor://",
        ["a:1", "b:2"],
        7440,
        "a:²",
        "a..b:1",
        "a" * 70,
        "a\0b",
    ],
)
def test_a_wrong_url_is_refused_in_words(url):
    with pytest.raises(stentor.InvalidArgument):
        parse_url(url)


def test_the_environment_names_the_broker(shared, monkeypatch):
    monkeypatch.setenv("STENTOR_URL", shared.url)
    with stentor.connect() as connected:
        assert connected.broker().address in shared.url


def test_nobody_there_is_an_error_that_says_what_to_do():
    with pytest.raises(stentor.ConnectionFailed, match="stentor serve"):
        stentor.connect("127.0.0.1:1", timeout=5)


def test_a_port_that_speaks_something_else_is_an_error_in_time():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(stentor.StentorError):
        stentor.connect(f"127.0.0.1:{server.getsockname()[1]}", timeout=0.5)


def test_publish_returns_where_the_message_is(client):
    first = client.publish("receipts", "a")
    second = client.publish("receipts", "b", key="k", headers=[("h", "v")])
    assert (first.topic, first.partition) == ("receipts", 0)
    assert second.offset == first.offset + 1
    assert abs(second.timestamp - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("ack", ["head", "quorum", "all"])
def test_every_ack_level_ends_in_the_log(client, ack):
    client.publish(f"acks.{ack}", "x", ack=ack)
    assert [m.value for m in client.read(f"acks.{ack}")] == [b"x"]


def test_clients_have_names_that_operators_see(shared):
    with shared.client(name="billing-7") as named:
        named.publish("seen", "x")
        with named.subscribe("seen"):
            (info,) = [c for c in named.clients() if c.name == "billing-7"]
        assert info.publishing == ["seen"]
        assert info.subscriptions == ["seen"]


def test_positions_are_the_same_words_everywhere(client):
    base = datetime(2024, 1, 1, tzinfo=UTC)
    for index in range(10):
        client.publish("positions", f"{index}", timestamp=base + timedelta(hours=index))

    def values(**options):
        return [int(m.value) for m in client.read("positions", **options)]

    assert values() == list(range(10))
    assert values(start=3, end=6) == [3, 4, 5]
    assert values(start=base + timedelta(hours=4, minutes=1)) == [5, 6, 7, 8, 9]
    assert values(start=stentor.Last(2)) == [8, 9]
    assert values(start="latest") == []
    assert values(end=base + timedelta(hours=2)) == [0, 1]
    assert values(limit=4) == [0, 1, 2, 3]
    assert client.offsets("positions", stentor.Last(3)) == {0: 7}
    assert client.offsets("positions") == {0: 10}


@pytest.mark.parametrize("start", ["yesterday", -1, 1.5, True, None])
def test_a_wrong_position_is_refused_in_words(client, start):
    with pytest.raises(stentor.InvalidArgument, match="earliest"):
        client.subscribe("positions", start=start)


def test_history_becomes_arrow_pandas_and_polars(client):
    for index in range(5):
        client.publish("tabular", f"v{index}", key="k", headers={"h": "x"} if index else None)
    table = client.read("tabular").to_arrow()
    assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.column("value").to_pylist() == [b"v%d" % i for i in range(5)]
    assert list(client.read("tabular").to_pandas()["offset"]) == [0, 1, 2, 3, 4]
    assert client.read("tabular").to_polars()["topic"].to_list() == ["tabular"] * 5
    assert client.read("tabular", limit=2).to_arrow().num_rows == 2


class Order(msgspec.Struct):
    id: int
    item: str


@dataclass
class OrderData:
    id: int
    item: str


class OrderModel(pydantic.BaseModel):
    id: int
    item: str


@pytest.mark.parametrize("kind", [Order, OrderData, OrderModel])
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_typed_topics_carry_values_of_their_type(client, kind, encoding):
    name = f"typed.{kind.__name__}.{encoding}"
    topic = client.topic(name, type=kind | None, format=encoding)
    topic.publish(kind(id=1, item="tea"), key="a")
    with topic.producer() as producer:
        producer.send(kind(id=2, item="milk"))
        producer.send(None, "a")
    found = list(topic.read())
    assert [m.value for m in found] == [kind(id=1, item="tea"), kind(id=2, item="milk"), None]
    assert found[0].key == b"a"
    assert found[0].offset == 0


def test_what_cannot_be_decoded_is_a_choice(client):
    client.publish("mess", b"not json")
    client.topic("mess", type=Order).publish(Order(1, "tea"))
    with pytest.raises(stentor.DecodeFailed, match="on_error"):
        list(client.topic("mess", type=Order).read())
    assert [m.value for m in client.topic("mess", type=Order, on_error="skip").read()] == [Order(1, "tea")]
    assert [m.value for m in client.topic("mess", type=Order, on_error="raw").read()] == [b"not json", Order(1, "tea")]
    with pytest.raises(stentor.InvalidArgument):
        client.topic("mess", type=Order, format="xml")


def test_get_waits_until_its_deadline_and_no_longer(client):
    with client.subscribe("quiet") as subscription:
        with pytest.raises(stentor.DeadlineExceeded):
            subscription.get(timeout=0.05)
        client.publish("quiet", "now")
        assert subscription.get(timeout=5).value == b"now"


def test_get_and_iteration_share_one_place(client):
    client.topic("shared").publish("0")
    with client.producer("shared") as producer:
        producer.send_many([b"%d" % i for i in range(1, 100)])
    with client.subscribe("shared", start="earliest", end=100) as subscription:
        assert subscription.get(timeout=5).value == b"0"
        for message in subscription:
            if message.value == b"50":
                break
        assert subscription.get(timeout=5).value == b"51"
        assert [int(m.value) for m in subscription] == list(range(52, 100))
        with pytest.raises(stentor.Closed):
            subscription.get(timeout=5)


def test_closing_a_subscription_releases_the_thread_that_waits_in_it(client):
    subscription = client.subscribe("nothing.comes")
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(subscription))
    thread.start()
    subscription.close()
    thread.join(10)
    assert not thread.is_alive()


def test_a_closed_client_says_so_and_closing_twice_is_fine(shared):
    connected = shared.client()
    connected.close()
    connected.close()
    for call in (
        lambda: connected.publish("x", "y"),
        connected.topics,
        lambda: connected.subscribe("x"),
        lambda: connected.producer("x"),
    ):
        with pytest.raises(stentor.Closed):
            call()


def test_closing_a_client_flushes_its_producers(shared, client):
    other = shared.client()
    producer = other.producer("flushed")
    for index in range(1_000):
        producer.send(b"%d" % index)
    other.close()
    assert len(list(client.read("flushed"))) == 1_000


def test_a_subscription_lives_through_a_restart_without_gap_or_repeat():
    with broker() as local, local.client() as client, client.subscribe("steady") as subscription:
        for index in range(5):
            client.publish("steady", f"{index}")
        local.stop()
        local.start()
        for index in range(5, 10):
            client.publish("steady", f"{index}")
        assert [int(subscription.get(timeout=10).value) for _ in range(10)] == list(range(10))


def test_a_bounded_read_gives_up_when_the_broker_goes_away_for_good():
    with broker() as local, local.client(timeout=1.0) as client:
        with client.producer("half") as producer:
            for _ in range(40):
                producer.send(bytes(1024 * 1024))
        history = iter(client.read("half"))
        next(history)
        local.stop()
        with pytest.raises(stentor.DeadlineExceeded):
            list(history)


def test_calls_wait_for_a_broker_that_comes_back_and_give_up_at_their_deadline():
    with broker() as local, local.client() as client:
        client.publish("again", "a")
        local.stop()
        with pytest.raises(stentor.DeadlineExceeded):
            client.topics(timeout=0.2)
        starter = threading.Thread(target=local.start)
        starter.start()
        assert client.publish("again", "b").offset == 1
        starter.join()


def _use_after_fork(client, answers):
    try:
        client.publish("forked", "x")
    except stentor.ForkDetected as error:
        answers.put(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_carried_over_a_fork_says_so(client):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    client.publish("forked", "parent")
    child = context.Process(target=_use_after_fork, args=(client, answers))
    child.start()
    child.join(20)
    assert child.exitcode == 0
    assert "fork" in answers.get()
    assert os.getpid()
    client.publish("forked", "parent again")


def test_the_async_client_does_the_same(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            receipt = await client.publish("async.one", "hello", key="k")
            assert receipt.offset == 0
            async with await client.producer("async.one") as producer:
                for index in range(500):
                    await producer.send(f"{index}")
                await producer.send_many([b"x"] * 500)
            history = await client.read("async.one")
            assert len([m async for m in history]) == 1_001
            assert (await (await client.read("async.one")).to_arrow()).num_rows == 1_001
            async with await client.subscribe("async.*") as subscription:
                await client.publish("async.two", "new topic")
                assert (await subscription.get(timeout=5)).value == b"new topic"
                with pytest.raises(stentor.DeadlineExceeded):
                    await subscription.get(timeout=0.05)
            typed = client.topic("async.typed", type=Order)
            await typed.publish(Order(1, "tea"))
            assert [m.value async for m in await typed.read()] == [Order(1, "tea")]
            many = await asyncio.gather(*(client.publish("async.many", f"{i}") for i in range(200)))
            assert sorted(receipt.offset for receipt in many) == list(range(200))
            assert (await client.broker()).address in shared.url

    asyncio.run(work())


def test_both_clients_say_who_they_are_and_whether_they_are_closed(shared):
    address = shared.url.removeprefix("stentor://")

    async def work():
        async with stentor.connect_async(shared.url, name="me") as client:
            opened = repr(client)
        return opened, repr(client)

    assert asyncio.run(work()) == (f"<stentor.AsyncClient 'me' {address}>", "<stentor.AsyncClient 'me' closed>")
    with stentor.connect(shared.url, name="me") as client:
        assert repr(client) == f"<stentor.Client 'me' {address}>"
    assert repr(client) == "<stentor.Client 'me' closed>"


def test_the_error_that_ended_a_block_is_the_one_to_see(shared, monkeypatch):
    async def failing(core):
        raise stentor.PublishError("A message was not acknowledged.")

    async def work():
        async with stentor.connect_async(shared.url) as client:
            close = client._core.close
            monkeypatch.setattr(client._core, "close", lambda *_: failing(client._core))
            try:
                async with client:
                    raise KeyError("mine")
            finally:
                await close()

    with pytest.raises(KeyError):
        asyncio.run(work())


def test_a_client_asks_no_more_at_a_time_than_a_broker_allows_one_connection():
    assert limits.REQUESTS_UNDER_WAY_MAX > limits.CLIENT_REQUESTS_UNDER_WAY_MAX


def test_the_sync_client_works_beside_a_running_loop(shared):
    async def work():
        with shared.client() as client:
            return client.publish("beside", "x").offset

    assert asyncio.run(work()) == 0
