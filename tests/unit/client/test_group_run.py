"""A group's `run`: workers share what belongs to a member, and positions move only past finished work."""

import asyncio
import threading
import time
from itertools import count
from pathlib import Path

import pytest

import stentor
from stentor.errors import DeadlineExceeded, InvalidArgument, OffsetOutOfRange, PartitionNotFound
from stentor.work_errors import HandlerTimeout

names = count()


@pytest.fixture
def topic(client):
    """A topic with two partitions, and twenty messages in each."""
    name = f"runs.{next(names)}"
    client.create_topic(name, partitions=2)
    fill(client, name)
    yield name
    client.delete_topic(name)


def fill(client, topic, count=20, partitions=2):
    with client.producer(topic) as producer:
        for partition in range(partitions):
            for number in range(count):
                producer.send(f"{partition}-{number}", key=f"k{number % 3}", partition=partition)


def wait_for(condition, seconds=30):
    """Whether it holds in time."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.005)
    return True


def done(group):
    counted = group.statistics()
    return counted["done"] + counted["failed"]


def work(group, handler, until, **options):
    """Run until a condition holds; then let it stop."""
    failures = []

    def run():
        try:
            group.run(handler, **options)
        except BaseException as error:  # noqa: BLE001 - told in the thread of the test
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    held = wait_for(lambda: until() or not thread.is_alive()) and until()
    group.stop()
    thread.join(30)
    assert not thread.is_alive()
    if failures:
        raise failures[0]
    assert held


@pytest.mark.parametrize("options", [{}, {"workers": 3}, {"workers": 3, "ordered_by": "key"}, {"batch": 7}])
def test_everything_is_handled_and_committed(client, topic, options):
    seen = []

    def handle(given):
        seen.extend([given] if not options.get("batch") else given)

    with client.group("g", topic) as group:
        work(group, handle, lambda: len(seen) >= 40, **options)
        assert sorted(message.value for message in seen) == sorted({message.value for message in seen})
        assert group.positions() == {f"{topic}/0": 20, f"{topic}/1": 20}
        assert set(group.lag().values()) == {0}
    assert client.describe_group("g").lag == 0
    client.delete_group("g")


def test_one_worker_is_the_thread_that_calls(client, topic):
    threads = set()

    def handle(message):
        threads.add(threading.current_thread().name)
        if message.partition == 1 and message.offset == 19:
            group.stop()

    with client.group("here", topic) as group:
        group.run(handle)
    assert threads == {threading.current_thread().name}


def test_a_position_does_not_pass_what_is_not_finished(client, topic):
    release, seen = threading.Event(), []

    def handle(message):
        if message.partition == 0 and message.offset == 5:
            assert release.wait(30)
        seen.append(message)

    with client.group("lowest", topic) as group:

        def all_but_one():
            if len(seen) == 39 and not release.is_set() and group.positions()[f"{topic}/1"] == 20:
                assert group.positions() == {f"{topic}/0": 5, f"{topic}/1": 20}
                group.commit()
                assert sorted(each.position for each in client.describe_group("lowest").partitions) == [5, 20]
                release.set()
            return len(seen) == 40

        work(group, handle, all_but_one, workers=4, ordered_by=None)


def test_what_failed_is_handed_out_again(client, topic):
    seen = []

    def handle(message):
        if message.partition == 0 and message.offset == 5 and not seen:
            raise ValueError("not now")

    with client.group("again", topic) as group:
        with pytest.raises(ValueError, match="not now"):
            group.run(handle)
        assert group.positions()[f"{topic}/0"] == 5
        work(group, seen.append, lambda: group.positions() == {f"{topic}/0": 20, f"{topic}/1": 20})
    assert [message.offset for message in seen if message.partition == 0] == list(range(5, 20))


def test_a_loop_goes_on_behind_a_run(client, topic):
    with client.group("mixed", topic) as group:
        first = group.get(timeout=10)

        def handle(message):
            if message.partition != first.partition or message.offset == 9:
                raise ValueError("enough")

        with pytest.raises(ValueError, match="enough"):
            group.run(handle)
        left = []
        while len(left) < 40 and sum(group.lag().values()) > 1:
            left.append(group.get(timeout=10))
        places = [(message.partition, message.offset) for message in left]
        assert len(places) == len(set(places)), "nothing twice"
        assert (first.partition, 9) in places or places[0][1] == 0


def test_dead_letters_say_why(client, topic):
    dead = f"{topic}.dead"

    def handle(message):
        if message.offset == 7:
            raise KeyError("seven")

    with client.group("dead", topic) as group:
        work(group, handle, lambda: done(group) == 40, dead_letters=dead, workers=2)
        assert group.positions() == {f"{topic}/0": 20, f"{topic}/1": 20}
    found = list(client.read(dead))
    assert sorted(message.value for message in found) == [b"0-7", b"1-7"]
    headers = dict(found[0].headers)
    assert headers["stentor-failed-error"] == b"KeyError"
    assert headers["stentor-failed-topic"] == topic.encode()
    assert headers["stentor-failed-offset"] == b"7"
    assert b"test_group_run" in headers["stentor-failed-traceback"]


def test_whatever_an_error_says_and_however_many_headers_there_are_it_is_a_dead_letter(client, topic):
    dead, name = f"{topic}.dead", f"{topic}.many"
    client.publish(name, "bad", headers=[(f"h{number}", b"x") for number in range(1_000)])
    client.publish(name, "bad")

    def handle(_):
        raise ValueError("no Unicode: \udc80")

    with client.group("bad", name, start="earliest") as group:
        work(group, handle, lambda: done(group) == 2, dead_letters=dead)
    assert sorted(len(message.headers) for message in client.read(dead)) == [6, 1_000]


def test_errors_can_be_skipped(client, topic):
    def handle(message):
        raise ValueError(message.offset)

    with client.group("skip", topic) as group:
        work(group, handle, lambda: done(group) == 40, on_error="skip", workers=2)
        assert group.statistics()["failed"] == 40


def test_partitions_move_between_members_that_work(client, topic, shared):
    """One that must let go finishes what is in work first; nothing is done twice."""
    seen, lock = [], threading.Lock()

    def handle(message):
        with lock:
            seen.append((message.partition, message.offset))
        threading.Event().wait(0.002)

    with shared.client() as other, client.group("move", topic) as one:
        done, joined = threading.Event(), threading.Event()

        def second():
            with other.group("move", topic) as two:
                joined.set()
                work(two, handle, done.is_set, workers=2)

        thread = threading.Thread(target=second)

        def finished():
            if len(seen) > 3 and thread.ident is None:
                thread.start()
                assert joined.wait(20)
                fill(client, topic, 30)
            if len(set(seen)) == 100:
                done.set()
            return done.is_set()

        work(one, handle, finished, workers=2)
        thread.join(30)
    assert len(seen) == 100


def test_processes_work_for_a_group(client, topic, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("NOTES", str(tmp_path))
    with client.group("processes", topic) as group:
        options = {"mode": "process", "workers": 2, "ordered_by": "key"}
        work(group, "worker_handlers:note", lambda: done(group) == 40, **options)
        assert group.positions() == {f"{topic}/0": 20, f"{topic}/1": 20}
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert len(lines) == 40


def test_async_handlers_work_for_both_forms(client, topic, shared):
    seen = []

    async def handle(message):
        await asyncio.sleep(0)
        seen.append(message)

    with client.group("sync", topic) as group:
        work(group, handle, lambda: len(seen) == 40, workers=5)

    async def run():
        async with stentor.connect_async(shared.url) as other, other.group("async", topic) as group:
            running = asyncio.create_task(group.run(handle, workers=5))
            async with asyncio.timeout(20):
                while group.statistics()["done"] < 40:  # noqa: ASYNC110 - a condition of the product's
                    await asyncio.sleep(0.005)
            group.stop()
            await running
            assert set(group.lag().values()) == {0}

    seen.clear()
    asyncio.run(run())
    assert len(seen) == 40


def test_a_member_whose_handler_hangs_gives_its_partitions_away(client, topic, shared):
    """In a loop, too: the next one who asks is told why."""
    with shared.client() as other, other.group("hang", topic, time_limit=1) as group:
        message = group.get(timeout=10)
        assert wait_for(lambda: not client.describe_group("hang").members)
        with pytest.raises(HandlerTimeout, match=f"{topic}/{message.partition}@0 was not finished within 1 s"):
            group.get(timeout=10)


def test_a_run_whose_handler_hangs_leaves_too(client, topic, shared):
    release = threading.Event()
    with shared.client() as other, other.group("hung", topic) as group:
        with pytest.raises(HandlerTimeout):
            work(group, lambda _: release.wait(30), lambda: False, workers=2, time_limit=0.3, finish_within=0.5)
        assert wait_for(lambda: not client.describe_group("hung").members)
        release.set()


def test_the_only_worker_hangs_and_leaves_too(client, topic, shared):
    """Even if failures are skipped: nobody is left to work."""
    release = threading.Event()
    with shared.client() as other, other.group("alone", topic) as group:
        options = {"time_limit": 0.3, "finish_within": 0.5, "on_error": "skip"}
        thread = threading.Thread(target=lambda: swallow(lambda: group.run(lambda _: release.wait(30), **options)))
        thread.start()
        assert wait_for(lambda: client.describe_group("alone").members)
        assert wait_for(lambda: not client.describe_group("alone").members)
        release.set()
        thread.join(20)
        with pytest.raises(HandlerTimeout):
            group.get(timeout=10)


def swallow(call):
    with pytest.raises(HandlerTimeout):
        call()


def test_a_handler_that_holds_the_interpreter_expels_nobody(client, topic, shared):
    """Heartbeats cannot be sent meanwhile; the limit of silence is far away."""
    with shared.client() as other, other.group("gil", topic) as group, client.group("gil", topic) as second:
        assert wait_for(lambda: len(group.assignment) == len(second.assignment) == 1)
        group.get(timeout=10)
        before = client.describe_group("gil").generation
        sum(range(60_000_000))  # one step of C: no other thread of this process runs
        group.get(timeout=10)
        assert client.describe_group("gil").generation == before


# --- seek, pause, commit ------------------------------------------------------------------------


def test_seek_goes_back_and_forth(client, topic):
    with client.group("seek", topic, auto_commit=False) as group:
        group.pause(topic, 1)
        assert [group.get(timeout=10).offset for _ in range(5)] == [0, 1, 2, 3, 4]
        group.seek(topic, 0, 15)
        assert group.get(timeout=10).offset == 15
        group.seek(topic, 0, "earliest")
        assert group.get(timeout=10).offset == 0
        assert group.positions()[f"{topic}/0"] == 0
        group.commit()
        assert group.positions()[f"{topic}/0"] == 1
        with pytest.raises(PartitionNotFound, match="does not belong to this member"):
            group.seek(topic, 9, 0)
        with pytest.raises(OffsetOutOfRange):
            group.seek(topic, 0, 99)


def test_what_is_paused_stays_and_waits(client, topic):
    with client.group("pause", topic) as group:
        group.pause(topic, 0)
        assert group.paused == [(topic, 0)]
        assert {group.get(timeout=10).partition for _ in range(20)} == {1}
        with pytest.raises(DeadlineExceeded):
            group.get(timeout=0.2)
        assert len(group.assignment) == 2
        group.resume()
        assert [group.get(timeout=10).offset for _ in range(20)] == list(range(20))
        group.pause()
        fill(client, topic, 1)
        with pytest.raises(DeadlineExceeded):
            group.get(timeout=0.2)
        group.resume()
        assert {group.get(timeout=10).offset for _ in range(2)} == {20}


def test_commits_need_not_be_waited_for(client, topic):
    with client.group("soon", topic, auto_commit=False) as group:
        group.get(timeout=10)
        group.commit(wait=False)
        assert wait_for(lambda: client.describe_group("soon").lag == 39)


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        (print, {"workers": 0}, "workers=0"),
        (print, {"on_error": "ignore"}, "on_error='ignore'"),
        (print, {"dead_letters": "not a topic"}, "not a topic"),
        (7, {}, "not int"),
        ("no_module:f", {"mode": "process"}, "cannot be imported"),
        (lambda m: m, {"mode": "process"}, "cannot find"),
        ("nothing", {}, "does not name a handler"),
    ],
)
def test_impossible_runs_are_refused(client, topic, handler, options, said):
    with client.group("refused", topic) as group, pytest.raises(InvalidArgument, match=said):
        group.run(handler, **options)


def test_closing_in_another_thread_ends_a_run(client, topic):
    begun = threading.Event()
    group = client.group("close", topic)
    thread = threading.Thread(target=group.run, args=(lambda _: begun.set(),), kwargs={"workers": 2})
    thread.start()
    assert begun.wait(20)
    group.close()
    thread.join(20)
    assert not thread.is_alive()
