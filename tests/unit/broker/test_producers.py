"""Lasting producers: nobody sends in their name, and nothing counts as written that is not in the log."""

import logging
from datetime import UTC, datetime

import pytest

from stentor import limits
from stentor.client.identity import FormerIdentity, producer_id_of, producer_token
from stentor.core.dedupe import LASTING, lasting_id
from stentor.errors import (
    InvalidArgument,
    LimitExceeded,
    NotReady,
    ProducerNotProven,
    ProtocolError,
    PublishError,
    UnknownOutcome,
)
from stentor.wire import frames, messages

LAST_GENERATION = 2**32 - 1
PRODUCER = 4711
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_topic(connection, name="t", **settings):
    return connection.ask(messages.CreateTopic(name=name, settings=settings, exist_ok=True)).topic.id


@pytest.fixture
def link(local, raw):
    return raw(local.url).greet()


def send_all(client, values, **options):
    """One batch for each value, the same bytes every time."""
    receipts = []
    note = lambda receipt, error: receipts.append(receipt or error)  # noqa: E731
    with client.producer("t", batch_messages=1, **options) as producer:
        for value in values:
            producer.send(value, timestamp=NOON, on_delivery=note)
    return receipts


def offsets(link, correlations):
    """What publishes are answered with, in whichever order the answers come."""
    found = {}
    while len(found) < len(correlations):
        kind, correlation, body = link.receive()
        assert kind == frames.Kind.PUBLISHED, messages.decode(body, messages.Failure)
        found[correlation] = frames.PUBLISHED.unpack(body)[0]
    return [found[correlation] for correlation in correlations]


# --- who may send under an id -------------------------------------------------------------------


def test_a_stranger_cannot_send_under_the_id_of_a_lasting_producer(client, link, read):
    values = [b"%d" % number for number in range(1_000)]
    target = make_topic(link)
    owner = producer_id_of("orders", "secret")
    with pytest.raises(ProducerNotProven) as caught:
        link.published(link.publish(target, [b"forged"], producer_id=owner, generation=LAST_GENERATION))
    assert not caught.value.retriable
    assert caught.value.hint
    receipts = send_all(client, values, identity="orders", secret="secret")
    assert [receipt.offset for receipt in receipts] == list(range(1_000))
    assert read(client, "t") == values


def test_a_stranger_cannot_lock_out_a_producer_whose_id_it_has_read(client, link, read):
    """Ids stand in the headers of batches, which every reader gets."""
    target = make_topic(link)
    with client.producer("t") as producer:
        producer.send(b"a")
        producer.flush()
        known = producer._core.sender.id
        with pytest.raises(ProducerNotProven):
            link.published(link.publish(target, [b"forged"], producer_id=known, generation=LAST_GENERATION))
        producer.send(b"b")
    client.publish("t", b"c")
    shared = next(iter(client._async._publishers.values()))._core.sender.id
    with pytest.raises(ProducerNotProven):
        link.published(link.publish(target, [b"forged"], producer_id=shared, generation=LAST_GENERATION))
    client.publish("t", b"d")
    assert read(client, "t") == [b"a", b"b", b"c", b"d"]


def test_producers_of_a_client_that_follow_each_other_send_under_one_id(client, read):
    """So that neither the connection nor the partition remembers one for each of them."""
    ids = set()
    for number in range(100):
        with client.producer("t") as producer, client.producer("u") as other:
            ids |= {producer._core.sender.id, other._core.sender.id}
            producer.send(b"%d" % number)
            other.send(b"%d" % number)
    assert len(ids) == 1
    assert read(client, "t") == read(client, "u") == [b"%d" % number for number in range(100)]


def test_producers_that_are_open_together_on_one_topic_have_ids_of_their_own(client, read):
    producers = [client.producer("t", batch_messages=1) for _ in range(5)]
    assert len({producer._core.sender.id for producer in producers}) == 5
    for number in range(20):
        for producer in producers:
            producer.send(b"%d" % number)
    for producer in producers:
        producer.close()
    assert len(read(client, "t")) == 100


def test_a_client_with_very_many_producers_on_a_topic_sends_from_all_of_them(client, read, monkeypatch):
    """The connection shows tokens of a bounded number of them; the others have ids as clients of older versions do."""
    monkeypatch.setattr(limits, "PRODUCERS_PER_CONNECTION_MAX", 8)
    producers = [client.producer("t") for _ in range(20)]
    assert sum(producer._core.sender.id >= LASTING for producer in producers) == 4
    for producer in producers:
        producer.send(b"x")
    for producer in producers:
        producer.close()
    assert len(read(client, "t")) == 20


def test_whoever_knows_the_identity_but_not_the_secret_has_another_id():
    assert producer_id_of("orders", "a") != producer_id_of("orders", "b") != producer_id_of("orders", "")
    assert all(producer_id_of("orders", secret) >= LASTING for secret in ("", "a", "b"))


def test_the_secret_of_the_environment_counts_unless_another_is_given(monkeypatch):
    monkeypatch.setenv("STENTOR_PRODUCER_SECRET", "a")
    assert producer_token("orders") == producer_token("orders", "a") != producer_token("orders", "")


@pytest.mark.parametrize("empty", [False, True])
def test_an_identity_without_a_secret_is_refused_unless_that_is_meant(client, monkeypatch, empty):
    """Its name alone would open it. Those of older versions go on with an empty secret."""
    if empty:
        monkeypatch.setenv("STENTOR_PRODUCER_SECRET", "")
    with pytest.raises(InvalidArgument, match="needs a secret") as caught:
        client.producer("t", identity="orders")
    assert "STENTOR_PRODUCER_SECRET" in caught.value.hint
    client.producer("t", identity="orders", secret="").close()


def test_a_token_that_was_shown_counts_for_publishes_in_the_same_write(link):
    target = make_topic(link)
    token = b"t" * 32
    link._correlation += 1
    request = frames.frame(frames.Kind.REQUEST, link._correlation, messages.encode(messages.UseProducer(token=token)))
    link.send_bytes(request)
    assert link.published(link.publish(target, [b"x"], producer_id=lasting_id(token))) == 0


def test_a_token_counts_for_its_connection_alone(local, link, raw):
    target = make_topic(link)
    token = b"t" * 32
    assert link.ask(messages.UseProducer(token=token)) == messages.Done()
    other = raw(local.url).greet()
    with pytest.raises(ProducerNotProven):
        other.published(other.publish(target, [b"x"], producer_id=lasting_id(token)))


@pytest.mark.parametrize("size", [0, 15, 65, 10_000])
def test_a_token_has_a_sensible_size(link, size):
    with pytest.raises(ProtocolError):
        link.ask(messages.UseProducer(token=b"t" * size))


def test_a_connection_sends_for_so_many_lasting_producers_and_no_more(link, monkeypatch):
    monkeypatch.setattr(limits, "PRODUCERS_PER_CONNECTION_MAX", 3)
    for number in (0, 1, 2, 2, 0):
        link.ask(messages.UseProducer(token=b"%032d" % number))
    with pytest.raises(LimitExceeded):
        link.ask(messages.UseProducer(token=b"%032d" % 3))


def test_many_lasting_producers_of_one_client_begin_at_once(client, read):
    producers = [client.producer("t", identity=f"producer {number}", secret="s") for number in range(100)]
    for producer in producers:
        producer.send(b"x")
    for producer in producers:
        producer.close()
    assert len(read(client, "t")) == 100


def test_a_lasting_producer_shows_its_token_again_on_a_new_connection(local, client, read, wait_until):
    with client.producer("t", identity="orders", secret="") as producer:
        producer.send(b"a")
        producer.flush()
        for session in list(local.inner.parts.admission.sessions):
            local.inner.loop.call_soon_threadsafe(session.connection.abort)
        wait_until(lambda: client._core.links_made > 1, "the client is connected again")
        producer.send(b"b")
    assert read(client, "t") == [b"a", b"b"]


def test_a_broker_that_knows_no_tokens_is_sent_none(local, monkeypatch, read):
    """A client may be newer than the brokers."""
    monkeypatch.setattr(frames, "FEATURES", ("rows", "arrow"))
    monkeypatch.setattr("stentor.broker.sessions.client_session.LASTING", 1 << 64)
    shown = []
    monkeypatch.setattr(
        "stentor.broker.sessions.client_session.ClientSession._use", lambda _, request: shown.append(request)
    )
    with local.client() as client:
        assert [receipt.offset for receipt in send_all(client, [b"a"], identity="orders", secret="")] == [0]
    assert shown == []


def test_a_token_is_neither_logged_nor_counted_nor_shown(local, client, caplog, read):
    caplog.set_level(logging.DEBUG)
    send_all(client, [b"a"], identity="orders", secret="hush")
    token = producer_token("orders", "hush")
    request = messages.UseProducer(token=token)
    told = f"{caplog.text}{client.statistics()}{client.clients()}{request!r}"
    assert "hush" not in told
    assert token.hex() not in told
    assert repr(token) not in told


# --- what counts as written ---------------------------------------------------------------------


def test_nothing_is_acknowledged_that_is_not_in_the_log(local, client, link, read):
    """Somebody who knows the identity can stop its owner, but not make messages vanish."""
    target = make_topic(link)
    token = producer_token("orders", "")
    link.ask(messages.UseProducer(token=token))
    link.published(link.publish(target, [b"forged"], producer_id=lasting_id(token), generation=LAST_GENERATION))
    acknowledged = []
    producer = client.producer("t", identity="orders", secret="", generation=5)
    for number in range(1_000):
        producer.send(b"%d" % number, on_delivery=lambda receipt, _: receipt and acknowledged.append(receipt))
    with pytest.raises(PublishError) as caught:
        producer.close()
    assert isinstance(caught.value.failed[0].error, UnknownOutcome)
    assert caught.value.failed[0].error.hint
    assert acknowledged == []
    assert read(client, "t") == [b"forged"]


def publish_many(link, target, count, *, generation=0, others=0):
    for sequence in range(count):
        link.publish(target, [b"%d" % sequence], producer_id=PRODUCER, generation=generation, sequence=sequence)
        for _ in range(others):
            link.publish(target, [b"other"])
    last = link.publish(target, [b"end"])
    link.published(last)


def test_a_batch_that_is_no_longer_remembered_is_found_in_the_log(link):
    target = make_topic(link, segment_bytes=limits.SEGMENT_BYTES_MIN)
    publish_many(link, target, 500, others=2)
    again = [link.publish(target, [b"%d" % s], producer_id=PRODUCER, sequence=s) for s in range(500)]
    assert offsets(link, again) == [3 * s for s in range(500)]


def test_many_old_batches_cost_one_search(local, link):
    target = make_topic(link)
    publish_many(link, target, 300)
    for sequence in range(200):
        link.published(link.publish(target, [b"%d" % sequence], producer_id=PRODUCER, sequence=sequence))
    assert local.inner.parts.serving.partition(target, 0).statistics().dedupe.searches == 1


def test_a_batch_of_an_older_generation_is_found_in_the_log(link):
    target = make_topic(link)
    publish_many(link, target, 50)
    publish_many(link, target, 50, generation=7)
    for sequence in (0, 49, 20):
        correlation = link.publish(target, [b"%d" % sequence], producer_id=PRODUCER, sequence=sequence)
        assert link.published(correlation) == sequence


def test_what_was_written_after_a_search_is_found_by_the_next_one(link):
    target = make_topic(link)
    publish_many(link, target, 50)
    for sequence in (0, 10):
        assert (
            link.published(link.publish(target, [b"%d" % sequence], producer_id=PRODUCER, sequence=sequence))
            == sequence
        )
    for sequence in range(50, 100):
        link.publish(target, [b"%d" % sequence], producer_id=PRODUCER, sequence=sequence)
    link.published(link.publish(target, [b"end"]))
    for sequence in (60, 0):
        again = link.publish(target, [b"%d" % sequence], producer_id=PRODUCER, sequence=sequence)
        assert link.published(again) == sequence + (sequence >= 50)
    publish_many(link, target, 1, generation=7)
    again = link.publish(target, [b"99"], producer_id=PRODUCER, sequence=99)
    assert link.published(again) == 100


def test_what_was_found_counts_no_more_in_another_epoch(local, link, wait_until):
    """The log may have been cut in between."""
    target = make_topic(link)
    publish_many(link, target, 50)
    again = {"producer_id": PRODUCER, "sequence": 0}
    assert link.published(link.publish(target, [b"0"], **again)) == 0
    partition = local.inner.parts.serving.partition(target, 0)
    partition.replica.epoch += 1
    assert link.published(link.publish(target, [b"0"], **again)) == 0
    assert partition.statistics().dedupe.searches == 2


def test_a_search_during_which_the_epoch_changes_is_asked_for_again(local, link, monkeypatch):
    target = make_topic(link)
    publish_many(link, target, 50)
    partition = local.inner.parts.serving.partition(target, 0)
    submit = partition.reads.submit

    def overtaken(work, done):
        partition.replica.epoch += 1
        submit(work, done)

    monkeypatch.setattr(partition.reads, "submit", overtaken)
    with pytest.raises(NotReady):
        link.published(link.publish(target, [b"0"], producer_id=PRODUCER, sequence=0))


@pytest.mark.parametrize(("generation", "reason"), [(7, "forgotten"), (3, "old_generation"), (0, "old_generation")])
def test_what_is_not_found_in_the_log_has_an_unknown_outcome(link, generation, reason):
    target = make_topic(link)
    publish_many(link, target, 5, generation=3)
    publish_many(link, target, 50, generation=7)
    end = link.published(link.publish(target, [b"end"]))
    with pytest.raises(UnknownOutcome) as caught:
        link.published(link.publish(target, [b"not it"], producer_id=PRODUCER, generation=generation, sequence=2))
    assert caught.value.detail["reason"] == reason
    assert not caught.value.retriable
    assert link.published(link.publish(target, [b"end"])) == end + 1


def test_a_search_has_an_end_within_its_bounds(link, monkeypatch):
    monkeypatch.setattr("stentor.storage.earlier.PRODUCER_SEARCH_BATCHES_MAX", 10)
    target = make_topic(link, segment_bytes=limits.SEGMENT_BYTES_MIN)
    publish_many(link, target, 2_000)
    with pytest.raises(UnknownOutcome):
        link.published(link.publish(target, [b"0"], producer_id=PRODUCER, sequence=0))


def test_too_many_who_wait_for_searches_are_told_to_come_back(local, link, monkeypatch):
    monkeypatch.setattr(limits, "PRODUCER_SEARCHES_WAITING_MAX", 0)
    target = make_topic(link)
    publish_many(link, target, 50)
    with pytest.raises(Exception, match="Too many old batches") as caught:
        link.published(link.publish(target, [b"0"], producer_id=PRODUCER, sequence=0))
    assert caught.value.retriable


def test_a_producer_made_again_after_many_batches_doubles_nothing(client, read):
    values = [b"%d" % number for number in range(200)]
    for _ in range(2):
        receipts = send_all(client, values, identity="orders", secret="")
        assert [receipt.offset for receipt in receipts] == list(range(200))
    assert read(client, "t") == values


def test_what_an_older_version_began_is_recognised_under_the_id_that_it_used(client, read):
    for _ in range(2):
        send_all(client, [b"a", b"b"], identity=FormerIdentity("orders"))
    assert read(client, "t") == [b"a", b"b"]
