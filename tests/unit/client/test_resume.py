"""A subscription that is stopped goes on where it was: positions of messages and of subscriptions, given as `start`."""

import asyncio
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, repeat

import pytest

import stentor
from stentor import Position, limits
from stentor.testing import broker

COUNT = 30  # messages of each partition


@pytest.fixture(scope="module")
def numbers(shared):
    """A topic of three partitions with numbered messages, in batches of several sizes."""
    with shared.client() as client:
        client.create_topic("resume.numbers", partitions=3)
        with client.producer("resume.numbers") as producer:
            for partition in range(3):
                for number in range(COUNT):
                    producer.send(b"%d" % number, partition=partition)
                    if number in (0, 1, 5):
                        producer.flush()
    return "resume.numbers"


@pytest.fixture
def tidy(monkeypatch):
    """A client of a broker that looks for expired segments often."""
    monkeypatch.setattr(limits, "RETENTION_CHECK_S", 0.1)
    with broker(segment_bytes=limits.SEGMENT_BYTES_MIN) as local, local.client() as connected:
        yield connected


def places(messages):
    return sorted((message.topic, message.partition, message.offset) for message in messages)


def everything(topic, *partitions):
    return [(topic, partition, offset) for partition in partitions for offset in range(COUNT)]


# --- one position -------------------------------------------------------------------------------


def test_a_message_says_where_the_next_one_is(client, numbers):
    message = next(iter(client.read(numbers, partition=1, start=7)))
    position = message.position
    assert (position.topic, position.partition, position.offset) == (numbers, 1, 8)
    assert position.topic_id == client.describe_topic(numbers).id
    assert str(position) == f"{numbers}/1@8#{position.topic_id:016x}"


def test_a_position_comes_back_from_text_json_and_pickle():
    position = Position("orders.eu", 2, 17, 5)
    assert f"{position}" == "orders.eu/2@17#0000000000000005"
    assert Position.parse(json.loads(json.dumps(str(position)))) == position
    assert pickle.loads(pickle.dumps(position)) == position
    assert Position.parse("orders.eu/2@17") == Position("orders.eu", 2, 17)
    assert len({position, Position("orders.eu", 2, 17, 5)}) == 1
    with pytest.raises(AttributeError):
        position.offset = 3


@pytest.mark.parametrize("text", ["", "orders", "orders/0", "orders@5", "orders/x@5", "orders/0@-1", "a b/0@1", 7])
def test_text_that_is_no_position_is_refused(text):
    with pytest.raises(stentor.InvalidArgument, match="is not a position"):
        Position.parse(text)


def test_a_position_is_a_start(client, numbers):
    message = client.read(numbers, partition=0, limit=5)
    last = list(message)[-1]
    with client.subscribe(numbers, partition=0, start=last.position) as subscription:
        assert subscription.get(timeout=5).offset == 5
    assert [m.offset for m in client.read(numbers, partition=0, start=str(last.position))] == list(range(5, COUNT))


# --- starts -------------------------------------------------------------------------------------


def test_every_partition_may_have_its_own_start(client, numbers):
    found = client.read(numbers, start={0: 28, 1: 29, 2: COUNT})
    assert places(found) == [(numbers, 0, 28), (numbers, 0, 29), (numbers, 1, 29)]


def test_partitions_that_a_start_does_not_name_are_read_from_their_beginning(client, numbers):
    assert places(client.read(numbers, start={0: 29, 1: "latest"})) == [(numbers, 0, 29), *everything(numbers, 2)]


def test_what_json_makes_of_a_mapping_is_the_same_start(client, numbers):
    start = json.loads(json.dumps({0: 29, 1: COUNT, 2: COUNT}))
    assert places(client.read(numbers, start=start)) == [(numbers, 0, 29)]


def test_starts_by_topic_serve_patterns_and_lists(client, numbers):
    for topic in ("resume.by.a", "resume.by.b"):
        for _ in range(3):
            client.publish(topic, "x")
    start = {"resume.by.a": {0: 1}, "resume.by.b": {0: 3}}
    wanted = [("resume.by.a", 0, 1), ("resume.by.a", 0, 2)]
    assert places(client.read("resume.by.*", start=start)) == wanted
    assert places(client.read(["resume.by.a", "resume.by.b"], start=start)) == wanted
    # A topic that was not there when the positions were stored is read from its beginning.
    assert places(client.read("resume.by.*", start={"resume.by.a": {0: 3}})) == [
        ("resume.by.b", 0, n) for n in range(3)
    ]


def test_a_topic_of_a_pattern_that_is_gone_is_told_and_a_later_one_is_read_whole(client):
    client.publish("resume.late.a", "x")
    with client.subscribe("resume.late.*", start={"resume.late.b": {0: 1}}) as subscription:
        client.publish("resume.late.b", "first")
        client.publish("resume.late.b", "second")
        found = {(message.topic, message.offset) for message in (subscription.get(timeout=5) for _ in range(3))}
        # It was gone when the subscription began: this is another topic, of which nothing was read.
        assert found == {("resume.late.a", 0), ("resume.late.b", 0), ("resume.late.b", 1)}
        assert "topic_gone" in {event.kind for event in subscription.events()}


@pytest.mark.parametrize(
    ("topics", "start", "says"),
    [
        ("resume.numbers", {0: -1}, "resume.numbers/0"),
        ("resume.numbers", {1: "middle"}, "resume.numbers/1"),
        ("resume.numbers", {2: True}, "resume.numbers/2"),
        ("resume.numbers", {2: None}, "resume.numbers/2"),
        ("resume.numbers", {"zero": 1}, "'zero' is not a partition"),
        ("resume.numbers", {-1: 1}, "-1 is not a partition"),
        ("resume.numbers", {1.5: 1}, "1.5 is not a partition"),
        ("resume.numbers", {"resume.numbers": 1}, "'resume.numbers' is not a partition"),
        ("resume.numbers", {0: 1, "resume.numbers": {0: 1}}, "start mixes topics and partitions"),
        ("resume.numbers", {"resume.other": {0: 1}}, "resume.other"),
        ("resume.numbers", {"resume.numbers": {0: {}}}, "resume.numbers/0"),
        ("resume.*", {0: 1}, "several topics"),
        (["resume.numbers", "resume.more"], {0: 1}, "several topics"),
        ("resume.numbers", ["resume.numbers/0@1", "resume.numbers/0@2"], "resume.numbers/0 twice"),
        ("resume.numbers", ["resume.numbers/0@1#1", "resume.numbers/1@2#2"], "two topics"),
        ("resume.numbers", [3], "is not a position"),
        ("resume.numbers", object(), "is not a position"),
    ],
)
def test_a_start_that_makes_no_sense_says_where(client, numbers, topics, start, says):
    for call in (client.subscribe, client.read):
        with pytest.raises(stentor.InvalidArgument) as caught:
            call(topics, start=start)
        assert says in str(caught.value)


def test_a_start_in_a_partition_that_is_not_there_is_told(client, numbers):
    for start in ({3: 1}, {numbers: {"3": 1}}, [f"{numbers}/3@1"]):
        with pytest.raises(stentor.PartitionNotFound, match="0 to 2") as caught:
            client.subscribe(numbers, start=start)
        assert caught.value.object == f"{numbers}/3"


def test_a_start_in_a_topic_that_is_not_there_makes_none(client):
    with pytest.raises(stentor.TopicNotFound, match=r"resume\.nowhere"):
        client.subscribe("resume.nowhere", start={0: 5})
    assert "resume.nowhere" not in [topic.name for topic in client.topics()]


def test_a_start_that_retention_has_passed_is_told_at_once(tidy, wait_until):
    tidy.create_topic("t", partitions=2, retention_bytes=100_000)
    with tidy.producer("t", batch_messages=10) as producer:
        for _ in range(500):
            producer.send(bytes(1000), partition=1)
    start = wait_until(lambda: tidy.offsets("t", "earliest")[1], "retention")
    with pytest.raises(stentor.OffsetOutOfRange, match="t/1") as caught:
        tidy.subscribe("t", start={1: 1})
    assert caught.value.object == "t/1"
    assert caught.value.start >= start
    assert "earliest" in caught.value.hint


@pytest.mark.parametrize("end", [None, "now"])
def test_a_start_beyond_the_end_is_told_and_never_waited_for(client, numbers, end):
    with pytest.raises(stentor.OffsetOutOfRange, match=f"{numbers}/1"):
        list(client.subscribe(numbers, start={1: COUNT + 1, 0: COUNT, 2: COUNT}, end=end, timeout=5))


@pytest.mark.parametrize("topics", ["resume.anew.a", "resume.anew.*"])
def test_a_topic_that_was_made_anew_is_not_resumed_at_an_old_offset(client, topics):
    client.create_topic("resume.anew.a", exist_ok=True)
    for _ in range(3):
        client.publish("resume.anew.a", "old")
    with client.subscribe(topics, start="earliest") as subscription:
        last = subscription.get(timeout=5)
        stored = json.loads(json.dumps(subscription.positions()))
    client.delete_topic("resume.anew.a")
    client.create_topic("resume.anew.a")
    for _ in range(3):
        client.publish("resume.anew.a", "new")
    for start in (stored, last.position):
        with pytest.raises(stentor.TopicReplaced, match=r"resume\.anew\.a") as caught:
            client.subscribe(topics, start=start)
        assert caught.value.object == "resume.anew.a"
        assert "earliest" in caught.value.hint


@pytest.fixture
def unheard(client, shared, wait_until):
    """A topic that was made anew, of which this client has not heard: the positions of both, and how it hears of it."""
    core, name = client._core, "resume.unheard"
    with shared.client() as other:
        other.publish(name, "old")
        (old,) = client.read(name)
        before = core.routes[name]
        other.delete_topic(name)
        other.create_topic(name)
        for _ in range(2):
            other.publish(name, "new")
        (new, _) = other.read(name)
    now = wait_until(lambda: (route := core.routes.get(name)) and route.id != before.id and route, "the new topic")

    def hear(route):
        core.routes[name] = route
        core._tell_routes()

    core.loop.call_soon_threadsafe(hear, before)
    wait_until(lambda: core.routes[name] is before)
    yield old.position, new.position, lambda: core.loop.call_soon_threadsafe(hear, now)
    client.delete_topic(name)


def test_a_client_that_has_not_heard_of_the_new_topic_asks(client, unheard):
    old, _, _ = unheard
    with pytest.raises(stentor.TopicReplaced):
        client.subscribe(old.topic, start=old)


def test_a_position_of_a_topic_that_the_client_will_hear_of_waits_for_it(client, unheard, wait_until):
    _, new, hear = unheard
    listeners = len(client._core.link_listeners)
    with ThreadPoolExecutor(1) as pool:
        subscribing = pool.submit(client.subscribe, new.topic, start=new)
        wait_until(lambda: len(client._core.link_listeners) > listeners or subscribing.done(), "it waits for news")
        hear()
        with subscribing.result() as subscription:
            assert subscription.get(timeout=5).offset == 1


# --- several partitions -------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [[0, 2], (2, 0), {0, 2}, range(0, 3, 2)])
def test_several_partitions_are_read_together(client, numbers, partition):
    assert places(client.read(numbers, partition=partition)) == everything(numbers, 0, 2)
    with client.subscribe(numbers, partition=partition, start="earliest", end="now") as subscription:
        assert places(subscription) == everything(numbers, 0, 2)


@pytest.mark.parametrize("partition", [[], [0, "1"], ["0"], [True], [-1], 1.5, "0", True, -1, {0: 1}])
def test_what_is_no_partition_is_refused(client, numbers, partition):
    with pytest.raises(stentor.InvalidArgument, match="partition="):
        client.read(numbers, partition=partition)


@pytest.mark.parametrize("partition", [3, [0, 3]])
def test_a_partition_that_is_not_there_is_named(client, numbers, partition):
    with pytest.raises(stentor.PartitionNotFound, match="no partition 3"):
        client.read(numbers, partition=partition)


def test_starts_of_partitions_that_are_not_read_do_not_matter(client, numbers):
    assert places(client.read(numbers, partition=[0, 1], start={0: 29, 1: COUNT, 2: 3})) == [(numbers, 0, 29)]


# --- positions of a subscription ----------------------------------------------------------------


def offsets(positions):
    return {position.partition: position.offset for position in map(Position.parse, positions)}


def test_a_subscription_that_has_handed_out_nothing_is_at_its_start(client, numbers):
    with client.subscribe(numbers, start={0: 3, 1: "latest"}) as subscription:
        assert offsets(subscription.positions()) == {0: 3, 1: COUNT, 2: 0}


@pytest.mark.parametrize("way", ["for", "get", "batches", "offset_batches"])
@pytest.mark.parametrize("taken", [1, 2, 7, 29, 30, 31, 60, 89, 90])
def test_going_on_gives_the_rest_and_nothing_twice(client, numbers, way, taken):
    with client.subscribe(numbers, start="earliest", end="now") as subscription:
        if way == "for":
            first = list(islice(subscription, taken))
        elif way == "get":
            first = [subscription.get(timeout=5) for _ in range(taken)]
        else:
            first, rows = [], 0
            for found in subscription.batches() if way == "batches" else subscription.offset_batches():
                rows += found.num_rows if way == "batches" else found[1].num_rows
                if rows >= taken:
                    break
        stored = json.dumps(subscription.positions())
    rest = places(client.read(numbers, start=json.loads(stored)))
    if first:
        assert sorted(places(first) + rest) == everything(numbers, 0, 1, 2)
    else:
        assert len(rest) == 3 * COUNT - rows


def test_messages_and_batches_in_turn_are_counted_alike(client, numbers):
    with client.subscribe(numbers, partition=0, start="earliest") as subscription:
        taken = 0
        for _ in range(3):
            assert subscription.get(timeout=5).offset == taken
            taken += 1
            assert offsets(subscription.positions()) == {0: taken}
            taken += next(subscription.batches()).num_rows
            assert offsets(subscription.positions()) == {0: taken}
            if taken == COUNT:
                break


def test_one_message_batches_are_counted_one_by_one(client):
    for number in range(20):
        client.publish("resume.singles", b"%d" % number)
    with client.subscribe("resume.singles", start=4) as subscription:
        assert offsets(subscription.positions()) == {0: 4}
        for number in range(4, 20):
            assert subscription.get(timeout=5).offset == number
            assert offsets(subscription.positions()) == {0: number + 1}


def test_an_end_is_not_passed(client, numbers):
    with client.subscribe(numbers, partition=[0], start=3, end=17) as subscription:
        assert len(list(subscription)) == 14
        assert offsets(subscription.positions()) == {0: 17}


@pytest.fixture(scope="module")
def many(shared):
    """A topic of three partitions with many small batches."""
    with shared.client() as client:
        client.create_topic("resume.many", partitions=3)
        with client.producer("resume.many", batch_messages=20) as producer:
            for number in range(3_000):
                producer.send(b"x", partition=number % 3)
    return "resume.many"


@pytest.fixture
def restless():
    """Threads are interrupted as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def take_and_compare(subscription, way):
    """Take until the end; nothing that comes may be below a position that was told before it came."""
    found = []
    while True:
        before = offsets(subscription.positions())
        if way == "batches":
            rows = next(subscription.batches(), None)
            columns = ([], []) if rows is None else (rows["partition"].to_pylist(), rows["offset"].to_pylist())
            got = list(zip(*columns, strict=True))
        else:
            messages = islice(subscription, 1 if way == "one" else 33)
            got = [(message.partition, message.offset) for message in messages]
        if not got:
            return found
        assert all(offset >= before[partition] for partition, offset in got), (before, got)
        found += got


@pytest.mark.parametrize(
    "ways", [("one", "one", "one"), ("one", "batches", "some"), ("batches", "batches")], ids="-".join
)
def test_threads_that_share_a_subscription_never_get_a_position_past_what_was_handed_out(client, many, restless, ways):
    with client.subscribe(many, start="earliest", end="now") as subscription:
        with ThreadPoolExecutor(len(ways)) as pool:
            found = sorted(chain.from_iterable(pool.map(take_and_compare, repeat(subscription), ways)))
        assert found == [(partition, offset) for partition in range(3) for offset in range(1_000)]
        assert offsets(subscription.positions()) == {0: 1_000, 1: 1_000, 2: 1_000}


def test_positions_stay_while_messages_at_hand_become_a_batch(client, many):
    """Whoever asks at the moment in which the rest of a batch is taken, to be handed out as rows."""
    with client.subscribe(many, partition=0, start="earliest") as subscription:
        subscription.get(timeout=5)
        told, messages = [], subscription._current

        def watched():
            for message in messages:
                told.append(offsets(subscription.positions()))
                yield message

        subscription._current = watched()
        rows = next(subscription.batches())
        assert told
        assert told == [{0: 1}] * len(told)
        assert offsets(subscription.positions()) == {0: 1 + rows.num_rows}


def test_what_was_skipped_over_is_not_gone_back_to(client):
    with client.subscribe("resume.skip", on_slow="skip", max_lag=5, start="earliest") as subscription:
        for _ in range(50):
            client.publish("resume.skip", "x")
        client.publish("resume.skip", "y")
        position = {0: 0}
        try:
            while True:
                position[0] = subscription.get(timeout=0.2).offset + 1
        except stentor.DeadlineExceeded:
            pass
        skipped = [event.next_offset for event in subscription.events() if event.kind == "skipped"]
        assert offsets(subscription.positions())[0] == max([position[0], *skipped])


def test_a_typed_message_has_its_position(client):
    topic = client.topic("resume.typed", type=dict)
    topic.publish({"a": 1})
    (message,) = topic.read()
    assert message.position.offset == 1


# --- async --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["for", "get", "batches"])
def test_tasks_go_on_alike(shared, numbers, way):
    async def main():
        async with stentor.connect_async(shared.url) as client:
            async with await client.subscribe(numbers, partition=[0, 2], start={0: 5, 2: 9}, end="now") as subscription:
                taken = []
                if way == "for":
                    async for message in subscription:
                        taken.append((message.partition, message.offset))
                        if len(taken) == 3:
                            break
                elif way == "get":
                    for _ in range(3):
                        message = await subscription.get(timeout=5)
                        taken.append((message.partition, message.offset))
                else:
                    async for rows in subscription.batches():
                        taken += zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
                        break
                stored = json.dumps(subscription.positions())
            read = await client.read(numbers, partition=[0, 2], start=json.loads(stored))
            return taken, [(message.partition, message.offset) async for message in read]

    taken, rest = asyncio.run(main())
    wanted = [(0, offset) for offset in range(5, COUNT)] + [(2, offset) for offset in range(9, COUNT)]
    assert sorted(taken + rest) == wanted
