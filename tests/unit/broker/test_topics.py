"""Topics come and go, and everyone who follows them is told."""

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from stentor.client import questions
from stentor.client.core import ClientCore
from stentor.errors import (
    CoordinationUnavailable,
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    TopicExists,
    TopicNotFound,
    UnknownSwap,
)
from stentor.testing import broker
from stentor.wire import messages
from stentor.wire.messages import TopicSettings


def names(client, pattern=None):
    return [topic.name for topic in client.topics(pattern)]


def test_a_topic_is_made_as_asked_and_described(client):
    made = client.create_topic("orders", partitions=3, flush="interval", retention_age_s=60, retention_bytes=10**9)
    assert made == client.describe_topic("orders")
    assert (made.settings.partitions, made.settings.flush) == (3, "interval")
    assert (made.settings.retention_age_s, made.settings.retention_bytes) == (60, 10**9)
    assert [partition.partition for partition in made.partitions] == [0, 1, 2]
    assert all((p.start, p.committed, p.end) == (0, 0, 0) for p in made.partitions)


def test_what_is_not_asked_for_comes_from_the_brokers_settings():
    with broker(default_partitions=4, flush="interval", retention_age_s=9) as local, local.client() as client:
        settings = client.create_topic("a", retention_bytes=5).settings
        assert settings == TopicSettings(
            partitions=4, flush="interval", replicas=1, retention_age_s=9, retention_bytes=5
        )
        client.publish("b", b"x")
        assert client.describe_topic("b").settings.partitions == 4


def test_a_name_can_be_taken_once(client):
    client.create_topic("a", partitions=2)
    with pytest.raises(TopicExists, match="a exists already"):
        client.create_topic("a")
    assert client.create_topic("a", exist_ok=True).settings.partitions == 2


def test_of_many_who_make_the_same_topic_at_once_one_succeeds(local):
    def make(_):
        with local.client() as client:
            try:
                return client.create_topic("contested", partitions=2).id
            except TopicExists:
                return None

    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(make, range(6)))
    assert sum(topic_id is not None for topic_id in made) == 1


def test_publishing_and_subscribing_make_a_topic_unless_the_broker_is_told_not_to(client):
    client.publish("a", b"x")
    client.subscribe("b").close()
    assert names(client) == ["a", "b"]
    with broker(auto_create=False) as strict, strict.client() as other:
        with pytest.raises(TopicNotFound, match="stentor topic create a"):
            other.publish("a", b"x")
        with pytest.raises(TopicNotFound):
            other.subscribe("a")
        with pytest.raises(TopicNotFound):
            other.read("a")
        other.create_topic("a")
        assert other.publish("a", b"x").offset == 0


def test_topics_are_listed_by_name_and_by_pattern(client):
    for name in ("orders.us", "orders.eu", "orders.eu.de", "payments", "_internal"):
        client.create_topic(name)
    assert names(client) == ["orders.eu", "orders.eu.de", "orders.us", "payments"]
    assert names(client, "orders.*") == ["orders.eu", "orders.us"]
    assert names(client, "orders.>") == ["orders.eu", "orders.eu.de", "orders.us"]
    assert names(client, "payments") == ["payments"]
    assert names(client, "_internal") == ["_internal"]
    assert names(client, "nothing.>") == []


def test_settings_can_be_changed_and_the_others_stay(client):
    client.create_topic("a", retention_age_s=60)
    changed = client.alter_topic("a", flush="interval", retention_bytes=100)
    assert changed.settings == TopicSettings(flush="interval", replicas=1, retention_age_s=60, retention_bytes=100)
    assert client.alter_topic("a", retention_age_s=None).settings.retention_age_s is None
    assert client.alter_topic("a").settings == client.describe_topic("a").settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"partitions": 5}, "cannot be changed"),
        ({"flush": "sometimes"}, "wrong"),
        ({"flush_interval_ms": 0}, "wrong"),
        ({"segment_bytes": 1}, "wrong"),
        ({"retention_age_s": -1}, "wrong"),
        ({"retention_age_s": "soon"}, "wrong"),
        ({"colour": "red"}, "no setting 'colour'"),
    ],
    ids=str,
)
def test_a_change_that_makes_no_sense_is_refused_and_nothing_changes(client, changes, words):
    before = client.create_topic("a").settings
    with pytest.raises(InvalidArgument, match=words):
        client.alter_topic("a", **changes)
    assert client.describe_topic("a").settings == before


@pytest.mark.parametrize(
    "settings", [{"partitions": 0}, {"partitions": 1025}, {"flush": "no"}, {"segment_bytes": 5}, {"colour": 1}], ids=str
)
def test_a_topic_cannot_be_made_with_settings_that_make_no_sense(client, settings):
    with pytest.raises(InvalidArgument, match="setting"):
        client.create_topic("a", **settings)
    assert names(client) == []


@pytest.mark.parametrize("call", ["describe_topic", "delete_topic", "alter_topic"])
def test_what_is_not_there_is_not_found_and_the_hint_says_how_to_look(client, call):
    with pytest.raises(TopicNotFound, match="stentor topic list"):
        getattr(client, call)("nowhere")


def test_limits_on_topics_and_partitions_hold(client, monkeypatch):
    monkeypatch.setattr("stentor.limits.PARTITIONS_PER_BROKER_MAX", 5)
    client.create_topic("a", partitions=3)
    with pytest.raises(LimitExceeded, match=r"would hold \d+ partitions; the limit is 5"):
        client.create_topic("b", partitions=3)
    client.create_topic("c", partitions=2)


def test_topics_and_their_settings_survive_a_restart(tmp_path, read):
    with broker(tmp_path) as local:
        with local.client() as client:
            before = client.create_topic("a", partitions=2, retention_age_s=600)
            client.publish("a", b"x", partition=1)
            client.create_topic("gone")
            client.delete_topic("gone")
        local.stop()
        local.start()
        with local.client() as client:
            after = client.describe_topic("a")
            assert (after.id, after.settings) == (before.id, before.settings)
            assert [p.committed for p in after.partitions] == [0, 1]
            assert [p.epoch for p in after.partitions] == [p.epoch + 1 for p in before.partitions]
            assert names(client) == ["a"]
            assert read(client, "a") == [b"x"]


def test_a_deleted_topic_leaves_no_files_and_its_name_is_free(client, local, wait_until):
    client.create_topic("a", partitions=3)
    for number in range(30):
        client.publish("a", b"x" * 1000, partition=number % 3)
    client.delete_topic("a")
    assert list((local.data_directory / "partitions").iterdir()) == []
    assert client.create_topic("a").partitions[0].committed == 0


def test_subscribers_of_a_deleted_topic_are_told(client):
    client.publish("a", b"x")
    subscription = client.subscribe("a", start="earliest")
    assert subscription.get(timeout=5).value == b"x"
    client.delete_topic("a")
    with pytest.raises(TopicNotFound, match="a was deleted"):
        subscription.get(timeout=5)


def test_a_reader_of_a_deleted_topic_is_told_instead_of_waiting(client):
    client.publish("a", b"x")
    history = client.read("a", end=100)
    messages = iter(history)
    assert next(messages).value == b"x"
    client.delete_topic("a")
    with pytest.raises(TopicNotFound):
        next(messages)


def test_a_subscription_by_pattern_goes_on_without_the_topic_that_was_deleted(client, wait_until):
    client.publish("a.one", b"1")
    client.publish("a.two", b"2")
    with client.subscribe("a.*", start="earliest") as subscription:
        assert sorted(subscription.get(timeout=5).value for _ in range(2)) == [b"1", b"2"]
        client.delete_topic("a.one")
        wait_until(lambda: subscription.topics == ["a.two"], "the topic is gone from the subscription")
        assert ("topic_gone", "a.one") in {(event.kind, event.topic) for event in subscription.events()}
        client.publish("a.two", b"3")
        assert subscription.get(timeout=5).value == b"3"


def test_a_subscription_by_pattern_finds_topics_made_later_from_their_first_message(client, local, wait_until):
    with client.subscribe("orders.>", start="latest") as subscription, local.client() as other:
        for name in ("orders.eu", "orders.eu.de", "payments", "orders.us"):
            for number in range(3):
                other.publish(name, f"{name} {number}")
        found = [subscription.get(timeout=10).value.decode() for _ in range(9)]
        for name in ("orders.eu", "orders.eu.de", "orders.us"):
            assert [value for value in found if value.rpartition(" ")[0] == name] == [f"{name} {i}" for i in range(3)]
        with pytest.raises(DeadlineExceeded):
            subscription.get(timeout=0.1)
        assert subscription.topics == ["orders.eu", "orders.eu.de", "orders.us"]
        assert {event.topic for event in subscription.events() if event.kind == "topic_found"} == set(
            subscription.topics
        )


def test_a_topic_of_a_pattern_that_cannot_be_asked_in_time_is_asked_again(client, local):
    with local.client(timeout=0.5, name="reader") as reader, reader.subscribe("a.*") as subscription:
        (session,) = (each for each in local.inner.parts.admission.sessions if each.caller.name == "reader")
        tell = session.routes_changed

        def tell_and_stand_still(change):
            tell(change)
            session.loop.call_soon(time.sleep, 1.0)

        session.routes_changed = tell_and_stand_still
        client.create_topic("a.x")
        session.routes_changed = tell
        client.publish("a.x", b"x")
        assert subscription.get(timeout=10).value == b"x"


def test_a_topic_made_again_is_found_again_by_a_pattern(client, local):
    with client.subscribe("a.*") as subscription, local.client() as other:
        for round_ in range(4):
            other.publish("a.x", b"%d" % round_)
            assert subscription.get(timeout=10).value == b"%d" % round_
            other.delete_topic("a.x")


@pytest.mark.parametrize("read", [lambda c: list(c.read("typo")), lambda c: c.subscribe(["there", "typo"], end="now")])
def test_who_reads_to_an_end_is_told_that_a_topic_is_not_there_and_makes_none(client, read):
    client.publish("there", b"x")
    with pytest.raises(TopicNotFound, match="no topic typo"):
        read(client)
    assert names(client) == ["there"]


def test_several_topics_and_patterns_are_one_subscription(client):
    with client.subscribe(["one", "many.*", "many.x"], start="earliest") as subscription:
        client.publish("one", b"1")
        client.publish("many.x", b"2")
        client.publish("other", b"3")
        assert sorted(subscription.get(timeout=10).value for _ in range(2)) == [b"1", b"2"]
        with pytest.raises(DeadlineExceeded):
            subscription.get(timeout=0.1)


def test_internal_topics_are_not_matched_by_accident(client):
    with client.subscribe(">") as subscription:
        client.publish("_internal", b"no")
        client.publish("public", b"yes")
        assert subscription.get(timeout=10).value == b"yes"


def test_deleting_while_others_publish_and_read_ends_in_typed_errors_only(local, client):
    client.create_topic("busy", partitions=2)

    def publish():
        with local.client(timeout=5) as other:
            for _ in range(200):
                try:
                    other.publish("busy", b"x" * 100)
                except Exception as error:  # noqa: BLE001 - that is what is looked at
                    return error
        return None

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(publish) for _ in range(3)]
        for _ in range(5):
            client.delete_topic("busy")
            client.create_topic("busy", partitions=2, exist_ok=True)
        outcomes = [future.result() for future in running]
    assert all(outcome is None or hasattr(outcome, "code") for outcome in outcomes), outcomes
    assert client.publish("busy", b"last")


def test_a_topic_that_is_deleted_while_it_is_made_on_the_way_is_made_again(local, client, monkeypatch):
    refreshed = ClientCore.refresh_routes
    deletions = iter(["short"])

    async def deleted_meanwhile(core, timeout=None):
        for topic in deletions:
            await core.call(messages.DeleteTopic(name=topic), timeout)
        await refreshed(core, timeout)

    monkeypatch.setattr(ClientCore, "refresh_routes", deleted_meanwhile)
    with local.client() as other:
        assert other.publish("short", b"x").offset == 0
    assert [message.value for message in client.read("short")] == [b"x"]


def test_a_topic_made_a_moment_ago_says_where_it_is(local, client, monkeypatch):
    """Also before this broker's own copy has heard of its chain."""
    topic = client.create_topic("new")
    partition = local.inner.parts.serving.partition(topic.id, 0)
    known = partition.info()
    monkeypatch.setattr(partition, "info", lambda: msgspec.structs.replace(known, chain=[], epoch=0))
    (found,) = client.describe_topic("new").partitions
    assert (found.chain, found.epoch) == (known.chain, known.epoch)


class LostAnswers:
    """A store that makes changes of topics, or does not, and never says so."""

    def __init__(self, store, *, made, readable=True, answers=None):
        self._store, self._swap, self._get = store, store.swap, store.get
        self._answers = answers  # so many are lost; None: all
        self._made, self._readable = made, readable
        store.swap, store.get = self.swap, self.get

    async def swap(self, *, expect, put, **more):
        if self._answers == 0 or not any(key.startswith("topics/") for key in put):
            return await self._swap(expect=expect, put=put, **more)
        if self._answers is not None:
            self._answers -= 1
        if self._made:
            await self._swap(expect=expect, put=put, **more)
        raise UnknownSwap("A change was sent, but not answered.")

    async def get(self, key):
        if key.startswith("topics/") and not self._readable:
            raise CoordinationUnavailable("No answer.")
        return await self._get(key)


def test_a_topic_that_was_made_without_an_answer_is_made(local, client):
    LostAnswers(local.inner.parts.ground.store, made=True)
    client.create_topic("t")
    assert client.publish("t", "x").offset == 0
    assert [message.value for message in client.read("t")] == [b"x"]


def test_a_topic_that_may_have_been_made_keeps_its_logs(local, client, wait_until):
    """Others see it, publish, and are told that their messages are safe."""
    LostAnswers(local.inner.parts.ground.store, made=True, readable=False)
    with pytest.raises(UnknownSwap):
        client.create_topic("t")
    wait_until(lambda: "t" in names(client), "the topic")
    assert client.publish("t", "x").offset == 0
    local.stop()
    local.start()
    assert [message.value for message in client.read("t")] == [b"x"]


def test_a_topic_that_was_not_made_is_an_unknown_outcome(local, client):
    LostAnswers(local.inner.parts.ground.store, made=False)
    with pytest.raises(UnknownSwap):
        client.create_topic("t")
    assert names(client) == []


@pytest.mark.parametrize("made", [True, False])
def test_a_topic_that_may_exist_is_asked_for_again(local, client, made):
    LostAnswers(local.inner.parts.ground.store, made=made, readable=False, answers=1)
    assert client.create_topic("t", exist_ok=True).id == client.describe_topic("t").id


def test_a_store_that_no_broker_reaches_for_a_moment_is_waited_for(local, client, monkeypatch):
    answers = iter([False, False])
    cluster = type(local.inner.parts.cluster)
    monkeypatch.setattr(cluster, "reaches_store", property(lambda _: next(answers, True)))
    client.create_topic("t")
    assert names(client) == ["t"]


def test_a_store_that_no_broker_reaches_is_not_waited_for_for_long(local, client, monkeypatch):
    monkeypatch.setattr(questions, "STORE_PATIENCE_S", 0.3)
    monkeypatch.setattr(type(local.inner.parts.cluster), "reaches_store", property(lambda _: False))
    with pytest.raises(CoordinationUnavailable, match="does not reach"):
        client.create_topic("t")


def test_the_minimum_cannot_be_more_than_all(client):
    with pytest.raises(InvalidArgument, match="cannot be the minimum"):
        client.create_topic("t", replicas=1, min_replicas=2)
    client.create_topic("t")
    with pytest.raises(InvalidArgument, match="cannot be the minimum"):
        client.alter_topic("t", min_replicas=2)


# --- two brokers --------------------------------------------------------------------------------


def stop_watching(inner):
    """The coordination store tells this broker nothing from now on; it has to ask."""

    def stop():
        for task in inner.parts.cluster._tasks:
            if task.get_coro().__name__ == "_watch":
                task.cancel()

    inner.loop.call_soon_threadsafe(stop)


@pytest.fixture
def two(etcd, request, wait_until):
    """Two brokers that know a topic; one of them will hear of no change."""
    url = f"{etcd.url}/{abs(hash(request.node.nodeid))}"
    with (
        broker(coordination=url, broker_id="b0") as one,
        broker(coordination=url, broker_id="b1") as deaf,
        one.client() as client,
        deaf.client() as other,
    ):
        client.create_topic("t", replicas=1)
        wait_until(lambda: names(other) == ["t"], "both know it")
        stop_watching(deaf.inner)
        yield client, other


def test_a_topic_that_was_deleted_through_another_broker_can_be_made_at_once(two):
    client, other = two
    client.delete_topic("t")
    assert other.create_topic("t", replicas=1).name == "t"


def test_a_topic_that_was_changed_through_another_broker_can_be_deleted_at_once(two, wait_until):
    client, other = two
    client.alter_topic("t", retention_bytes=10**9)
    other.delete_topic("t")
    wait_until(lambda: not names(client), "both know that it is gone")


def not_heard_of_yet(inner, name):
    """As if another broker had made the topic, and the news of it were still on their way."""
    catalogue = inner.parts.cluster.followed.catalogue
    inner.loop.call_soon_threadsafe(lambda: catalogue.drop_topic(catalogue.topics[name]))


@pytest.mark.parametrize(
    "use",
    [
        lambda client: client.describe_topic("fresh").name,
        lambda client: client.alter_topic("fresh", retention_age_s=5).name,
        lambda client: [message.value for message in client.read("fresh")],
        lambda client: client.offsets("fresh", at="latest"),
        lambda client: client.delete_topic("fresh"),
    ],
    ids=["describe", "alter", "read", "offsets", "delete"],
)
def test_a_topic_that_the_broker_has_not_heard_of_yet_is_found_in_the_store(local, client, use):
    client.create_topic("fresh")
    not_heard_of_yet(local.inner, "fresh")
    with local.client() as other:
        use(other)
