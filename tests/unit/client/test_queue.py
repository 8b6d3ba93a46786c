"""Work queues on one broker, as applications use them."""

import asyncio
import threading
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

import stentor
from stentor.client import dead_letters
from stentor.client.dead_letters import Undertaker
from stentor.client.identity import ProducerIdentity
from stentor.client.queue_port import QueuePort
from stentor.client.transaction_copies import TransactionCopies
from stentor.client.transaction_core import MemberTransactions
from stentor.core.dedupe import lasting_id
from stentor.errors import ConnectionFailed, DeadlineExceeded, InternalError, InvalidArgument, LeaseLost, PublishError


@pytest.fixture
def name():
    return f"jobs.{uuid.uuid4().hex[:8]}"


@pytest.fixture
def jobs(client, name):
    with client.queue(name) as queue:
        yield queue


def make(client, name, **settings):
    client.create_topic(name, kind="queue", **settings)
    return client.queue(name)


def drain_unsettled(queue, count):
    """That many jobs, which are still to be settled."""
    return [queue.get(timeout=5) for _ in range(count)]


def drain(queue, count, timeout=5):
    """So many jobs, acknowledged one by one."""
    found = []
    for _ in range(count):
        job = queue.get(timeout=timeout)
        queue.ack(job, wait=False)
        found.append(job)
    return found


def test_a_job_is_put_taken_and_acknowledged(jobs):
    receipt = jobs.put("resize", key="7", headers={"who": "me"})
    job = jobs.get(timeout=5)
    assert (job.value, job.key, job.headers, job.attempt) == (b"resize", b"7", [("who", b"me")], 1)
    assert (job.offset, job.partition, job.queue) == (receipt.offset, 0, jobs.name)
    jobs.ack(job)
    assert (jobs.describe().waiting, jobs.describe().held, jobs.describe().finished) == (0, 0, 1)


def test_what_is_published_to_a_queue_is_a_job(client, jobs):
    client.publish(jobs.name, "plain")
    assert drain(jobs, 1)[0].value == b"plain"


def test_a_job_is_settled_once(jobs):
    jobs.put("job")
    job = jobs.get(timeout=5)
    jobs.ack(job)
    with pytest.raises(LeaseLost, match="before"):
        jobs.ack(job)
    with pytest.raises(LeaseLost):
        jobs.nack(job)
    with pytest.raises(LeaseLost):
        jobs.extend(job, 5)


def test_a_job_given_back_comes_again_with_another_attempt(jobs):
    jobs.put("job")
    jobs.nack(jobs.get(timeout=5), delay=0)
    job = jobs.get(timeout=5)
    assert job.attempt == 2
    jobs.ack(job)


def test_iteration_acknowledges_what_is_done(client, jobs):
    jobs.put_many([b"1", b"2", b"3"])
    for job in jobs:
        if job.value == b"3":
            break
    jobs.close()
    with client.queue(jobs.name) as again:
        assert again.get(timeout=5).value == b"3"
        assert again.describe().finished == 2


def test_jobs_that_were_not_begun_are_given_back_uncounted(client, jobs):
    jobs.put_many([b"1", b"2", b"3"])
    jobs.ack(jobs.get(timeout=5))
    jobs.close()
    with client.queue(jobs.name) as again:
        assert [job.attempt for job in drain(again, 2)] == [1, 1]


def test_a_handler_that_fails_is_tried_again_and_then_dead(client, name):
    with make(client, name, max_attempts=2, retry_delay_ms=1) as queue:
        queue.put_many([b"good", b"bad"])
        seen = []

        def handle(job):
            seen.append((job.value, job.attempt))
            if job.value == b"bad":
                raise ValueError("no good")

        worker = threading.Thread(target=queue.run, args=(handle,))
        worker.start()
        letter = next(iter(client.subscribe(f"{name}.dead", start="earliest")))
        queue.close()
        worker.join(10)
        assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
        said = dict(letter.headers)
        assert letter.value == b"bad"
        assert said["stentor-dead-reason"] == b"ValueError: no good"
        assert said["stentor-dead-attempts"] == b"2"
        assert (said["stentor-dead-topic"], said["stentor-dead-offset"]) == (name.encode(), b"1")
        assert b"raise ValueError" in said["stentor-dead-traceback"]


def test_dead_letters_are_put_back_once(client, jobs, wait_until):
    jobs.put("x", key="k", headers={"own": "header"})
    jobs.nack(jobs.get(timeout=5), dead=True, error="spoilt")
    wait_until(lambda: jobs.describe().died == 1, "it is put aside")
    assert (jobs.redrive(), jobs.redrive()) == (1, 0)
    job = jobs.get(timeout=5)
    assert (job.value, job.key, job.headers, job.attempt) == (b"x", b"k", [("own", b"header")], 1)
    jobs.ack(job)


def test_who_leaves_puts_aside_what_died(client, name):
    with client.queue(name) as queue:
        queue.put("x")
        queue.nack(queue.get(timeout=5), dead=True)
    assert [letter.value for letter in client.read(f"{name}.dead")] == [b"x"]


def test_jobs_of_many_partitions_are_settled_at_once(client, name, wait_until):
    with make(client, name, partitions=100) as queue:
        queue.put_many([b"x"] * 1_000, keys=[b"%d" % number for number in range(1_000)])
        for _ in range(1_000):
            queue.nack(queue.get(timeout=10), dead=True, wait=False)

    def all_are_put_aside():
        with suppress(DeadlineExceeded):  # who takes jobs puts aside what a slow machine has left
            queue.get(timeout=0.1)
        return queue.describe().died == 1_000

    with client.queue(name) as queue:
        wait_until(all_are_put_aside)


@pytest.mark.parametrize("broken", [(Undertaker, "_batches", KeyError(0)), (QueuePort, "_soon", LeaseLost("late"))])
def test_who_leaves_is_gone_whatever_goes_wrong(client, name, monkeypatch, broken):
    where, method, error = broken
    queue = client.queue(name)
    queue.put("x")
    queue.nack(queue.get(timeout=5), dead=True)
    with monkeypatch.context() as patched:
        patched.setattr(where, method, Mock(side_effect=error))
        queue.close()
    assert not [task for task in asyncio.all_tasks(client._core.loop) if "QueuePort" in repr(task)]


def test_a_stranger_cannot_keep_dead_jobs_from_being_put_aside(client, name, wait_until):
    """Their identity was a name that everybody could compute; now its token is the head's to give."""
    with make(client, name, partitions=1) as queue:
        topic = client.find_topic(name).id
        guessed = f"dead letters of {topic}/0"
        client.create_topic(f"{name}.dead")
        with client.producer(f"{name}.dead", identity=guessed, secret="", generation=2**32 - 1) as forged:
            forged.send(b"forged")
        queue.put("x")
        queue.nack(queue.get(timeout=5), dead=True)
        wait_until(lambda: queue.describe().died == 1, "it is put aside")
    assert [message.value for message in client.read(f"{name}.dead")] == [b"forged", b"x"]


async def send_forged(client, topic, token, generation):
    async with client.producer(topic) as producer:
        producer._core.send_as(ProducerIdentity(lasting_id(token), generation, lasting=True, token=token))
        await producer.send(b"forged")


def spoiled(monkeypatch, forge):
    """Let a stranger who learns a burial's token send something under its id just before its letters."""
    real, tokens = dead_letters.publish_once, []

    async def publish_once(client, topic, partition, batches, identity, generation, token=b""):
        if token not in tokens:
            tokens.append(token)
            if len(tokens) == 1:
                await send_forged(client, topic, token, forge(generation))
        return await real(client, topic, partition, batches, identity, generation, token)

    monkeypatch.setattr(dead_letters, "publish_once", publish_once)
    return tokens


@pytest.mark.parametrize("forge", [lambda _: 2**32 - 1, lambda generation: generation])
def test_whoever_learns_the_token_of_dead_letters_stops_none_of_them(client, name, monkeypatch, wait_until, forge):
    """Each consumer that puts dead jobs aside gets it, strangers too; it was the same one for ever."""
    monkeypatch.setattr(dead_letters, "_BATCH_BYTES", 1)  # a batch for each
    tokens = spoiled(monkeypatch, forge)
    with make(client, name, partitions=1) as queue:
        queue.put_many([b"a", b"b", b"c"])
        for job in drain_unsettled(queue, 3):
            queue.nack(job, dead=True, wait=False)
        wait_until(lambda: queue.describe().died == 3, "they are put aside")
        queue.put("d")
        queue.nack(queue.get(timeout=5), dead=True)
        wait_until(lambda: queue.describe().died == 4, "so is the next one")
    letters = [message.value for message in client.read(f"{name}.dead")]
    assert letters[0] == b"forged"
    assert sorted(letters[1:]) == [b"a", b"b", b"c", b"d"]
    assert len(tokens) == 2


def test_letters_that_are_written_already_are_not_written_again_under_another_id(client, name, monkeypatch, wait_until):
    """The consumer that wrote some of them is gone when somebody spoils their id."""
    monkeypatch.setattr(dead_letters, "_BATCH_BYTES", 1)
    real = dead_letters.publish_once
    calls = []

    async def publish_once(client, topic, partition, batches, identity, generation, token=b""):
        calls.append(generation)
        batches = list(batches)
        if len(calls) == 1:
            await real(client, topic, partition, batches[:1], identity, generation, token)
            await send_forged(client, topic, token, 2**32 - 1)
            raise ConnectionFailed("it is cut off here")
        return await real(client, topic, partition, batches, identity, generation, token)

    monkeypatch.setattr(dead_letters, "publish_once", publish_once)
    with make(client, name, partitions=1) as queue:
        queue.put_many([b"a", b"b", b"c"])
        for job in drain_unsettled(queue, 3):
            queue.nack(job, dead=True, wait=False)
        wait_until(lambda: queue.describe().died == 3, "they are put aside")
    assert sorted(message.value for message in client.read(f"{name}.dead")) == [b"a", b"b", b"c", b"forged"]


def test_a_consumer_stops_putting_aside_what_another_one_was_given(client, name, monkeypatch, wait_until):
    confirm = AsyncMock(side_effect=LeaseLost("it is another's now"))
    with make(client, name, partitions=1) as queue, monkeypatch.context() as patched:
        patched.setattr(QueuePort, "confirm_burial", confirm)
        queue.put("x")
        queue.nack(queue.get(timeout=5), dead=True)
        wait_until(lambda: confirm.await_count == 1, "it is written")
        wait_until(lambda: "_bury" not in repr(asyncio.all_tasks(client._core.loop)), "it is left to the other one")
        assert confirm.await_count == 1


def test_dead_jobs_that_nobody_put_aside_are_put_back(client, name, monkeypatch):
    with monkeypatch.context() as without, client.queue(name) as queue:
        without.setattr(Undertaker, "begin", lambda *_: None)
        without.setattr(Undertaker, "finish", AsyncMock())
        queue.put("x")
        queue.nack(queue.get(timeout=5), dead=True)
    with client.queue(name) as queue:
        assert queue.describe().partitions[0].dead == 1
        assert (queue.redrive(), queue.redrive()) == (1, 0)
        assert drain(queue, 1)[0].value == b"x"


def test_many_dead_jobs_are_put_aside_before_a_redrive(client, name, monkeypatch):
    with monkeypatch.context() as without, client.queue(name) as queue:
        without.setattr(Undertaker, "begin", lambda *_: None)
        without.setattr(Undertaker, "finish", AsyncMock())
        queue.put_many([b"x"] * 1_000)
        for _ in range(1_000):
            queue.nack(queue.get(timeout=5), dead=True, wait=False)
    bury, patience_s = Undertaker._bury, 0.5

    async def slowly(*burial):
        await asyncio.sleep(patience_s / 4)  # 10 burials
        await bury(*burial)

    monkeypatch.setattr(Undertaker, "_bury", slowly)
    monkeypatch.setattr("stentor.client.dead_letters._PATIENCE_S", patience_s)
    with client.queue(name) as queue:
        assert queue.redrive() == 1_000


def test_queues_that_share_a_topic_for_dead_letters_get_back_their_own(client, name, wait_until):
    dead = f"{name}.both"
    with (
        make(client, f"{name}.a", dead_letter_topic=dead) as first,
        make(client, f"{name}.b", dead_letter_topic=dead) as second,
    ):
        for queue in (first, second):
            queue.put(queue.name)
            queue.nack(queue.get(timeout=5), dead=True)
            wait_until(lambda queue=queue: queue.describe().died == 1, "it is put aside")
        assert (first.redrive(), second.redrive()) == (1, 1)
        assert [drain(queue, 1)[0].value.decode() for queue in (first, second)] == [first.name, second.name]


def test_letters_are_put_back_once_by_several_at_a_time(client, name, wait_until):
    with make(client, name, partitions=2) as queue:
        queue.put_many([b"%d" % number for number in range(1_500)])
        for _ in range(1_500):
            queue.nack(queue.get(timeout=10), dead=True, wait=False)
        wait_until(lambda: queue.describe().died == 1_500, "they are put aside")
        counts = []
        others = [threading.Thread(target=lambda: counts.append(queue.redrive())) for _ in range(3)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        assert sum(counts) == 1_500
        assert sorted(int(job.value) for job in drain(queue, 1_500)) == list(range(1_500))


def test_a_large_letter_is_put_back_once(client, jobs, wait_until, monkeypatch):
    jobs.put(bytes(3_000_000), key="7", headers={"who": "me"})
    jobs.nack(jobs.get(timeout=5), dead=True)
    wait_until(lambda: jobs.describe().died == 1, "it is put aside")
    with monkeypatch.context() as broken:
        broken.setattr(MemberTransactions, "commit", AsyncMock(side_effect=InternalError("killed")))
        with pytest.raises(InternalError):
            jobs.redrive()
    assert (jobs.redrive(), jobs.redrive()) == (1, 0)
    assert jobs.describe().waiting + jobs.describe().held == 1
    job = drain(jobs, 1)[0]
    assert (len(job.value), job.key, job.headers) == (3_000_000, b"7", [("who", b"me")])


@pytest.mark.parametrize("limit", [-1, True, "2"])
def test_a_limit_of_letters_is_a_number(jobs, limit):
    with pytest.raises(InvalidArgument, match="limit"):
        jobs.redrive(limit)


def test_letters_of_a_queue_with_a_long_name_are_put_back(client, name):
    with client.queue(name.ljust(195, "x")) as queue:
        queue.put("x")
        queue.nack(queue.get(timeout=5), dead=True)
        assert queue.redrive() == 1


def test_letters_in_a_queue_are_put_back(client, name, wait_until):
    with make(client, f"{name}.failed") as letters, make(client, name, dead_letter_topic=letters.name) as queue:
        queue.put("x")
        queue.nack(queue.get(timeout=5), dead=True)
        letters.ack(letters.get(timeout=5))
        wait_until(lambda: queue.describe().died == 1, "it is put aside")
        assert (queue.redrive(timeout=5), queue.redrive(timeout=5)) == (1, 0)


def test_what_retention_deletes_meanwhile_is_not_waited_for(client, jobs, wait_until, monkeypatch):
    jobs.put("x")
    jobs.nack(jobs.get(timeout=5), dead=True)
    wait_until(lambda: jobs.describe().died == 1, "it is put aside")
    topic = client.describe_topic(f"{jobs.name}.dead")
    deleted = [msgspec.structs.replace(each, start=1) for each in topic.partitions]
    monkeypatch.setattr(
        stentor.AsyncClient,
        "describe_topic",
        AsyncMock(side_effect=[topic, msgspec.structs.replace(topic, partitions=deleted)]),
    )
    assert jobs.redrive(timeout=5) == 0


def test_letters_that_were_put_back_by_half_come_back_with_the_next_redrive(client, jobs, wait_until, monkeypatch):
    jobs.put("x")
    jobs.nack(jobs.get(timeout=5), dead=True)
    wait_until(lambda: jobs.describe().died == 1, "it is put aside")
    with monkeypatch.context() as broken:
        broken.setattr(TransactionCopies, "publish", AsyncMock(side_effect=InternalError("killed")))
        with pytest.raises(PublishError):
            jobs.redrive()
    assert jobs.redrive() == 0  # this one has taken no letter
    assert drain(jobs, 1)[0].value == b"x"


def test_what_an_earlier_version_put_back_stays_so(client, jobs, wait_until):
    for number in range(2):
        jobs.put(f"{number}")
        jobs.nack(jobs.get(timeout=5), dead=True)
    wait_until(lambda: jobs.describe().died == 2, "they are put aside")
    client.move_cursor(f"{jobs.name}.dead", "redrive", {0: 1})
    assert jobs.redrive() == 1
    assert drain(jobs, 1)[0].value == b"1"


def test_many_consumers_share_one_partition(client, jobs):
    jobs.put_many([b"%d" % number for number in range(300)])
    found = []

    def work():
        with client.queue(jobs.name, prefetch=10) as own:
            try:
                while True:
                    found.append(drain(own, 1, timeout=1)[0].value)
            except DeadlineExceeded:
                pass

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert sorted(map(int, found)) == list(range(300))


def test_late_urgent_and_mortal_jobs(client, jobs, wait_until):
    jobs.put("late", delay=0.3)
    jobs.put("then", at=datetime.now(UTC) + timedelta(seconds=0.6))
    jobs.put("usual")
    jobs.put("urgent", priority=9)
    jobs.put_many([b"mortal"], ttl=0.001)
    wait_until(lambda: jobs.peek(9)[-1].state == "waiting", "it is there")
    assert [job.value for job in drain(jobs, 4)] == [b"urgent", b"usual", b"late", b"then"]
    wait_until(lambda: jobs.describe().died == 1, "nobody began the mortal one")


def test_a_unique_job_is_put_once(jobs):
    first = jobs.put("invoice", unique="i-7")
    again = jobs.put("invoice", unique="i-7")
    other = jobs.put("invoice", unique="i-8")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert len(drain(jobs, 2)) == 2
    assert jobs.put("invoice", unique="i-7", unique_for=0.001).duplicate


def test_an_attempt_beyond_its_limit_is_over(client, name):
    with make(client, name, retry_delay_ms=0, lease_s=1), client.queue(name, limit=0.2) as slow:
        slow.put("job")
        job = slow.get(timeout=5)
        second = slow.get(timeout=5)
        assert second.attempt == 2
        slow.extend(second, 5)
        with pytest.raises(LeaseLost):
            slow.ack(job)
        with pytest.raises(DeadlineExceeded):
            slow.get(timeout=0.5)
        slow.ack(second)


def test_a_long_handler_keeps_its_job(client, name):
    with make(client, name, lease_s=1) as queue, client.queue(name) as other:
        queue.put("job")
        job = queue.get(timeout=5)
        with pytest.raises(DeadlineExceeded):
            other.get(timeout=2.5)
        queue.ack(job)


def test_two_jobs_of_one_key_are_never_in_work_at_once(client, name):
    with make(client, name, ordered_by="key") as queue:
        queue.put_many([b"1", b"2", b"3"], [b"a", b"a", b"b"])
        one, three = queue.get(timeout=5), queue.get(timeout=5)
        assert (one.value, three.value) == (b"1", b"3")
        with pytest.raises(DeadlineExceeded):
            queue.get(timeout=0.2)
        queue.ack(one)
        assert queue.get(timeout=5).value == b"2"


def test_peek_and_purge(jobs):
    jobs.put_many([b"1", b"2"])
    jobs.put("3", delay=100, priority=2)
    peeked = jobs.peek()
    assert [(each.message.value, each.state, each.priority) for each in peeked] == [
        (b"1", "waiting", 0),
        (b"2", "waiting", 0),
        (b"3", "delayed", 2),
    ]
    assert jobs.purge() == 3
    assert jobs.peek() == []


def test_a_queue_with_several_partitions(client, name):
    with make(client, name, partitions=4) as queue:
        queue.put_many([b"%d" % number for number in range(100)], [b"%d" % number for number in range(100)])
        assert sorted(int(job.value) for job in drain(queue, 100)) == list(range(100))
        assert {each.partition for each in queue.describe().partitions} == {0, 1, 2, 3}


def test_large_jobs_come_in_parts(client, name):
    with make(client, name) as queue:
        for _ in range(6):
            queue.put(b"x" * 1_500_000)
        assert [len(job.value) for job in drain(queue, 6)] == [1_500_000] * 6


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda queue: queue.put("x", delay=-1), "0 to"),
        (lambda queue: queue.put("x", delay=1, at=1), "Give one"),
        (lambda queue: queue.put("x", priority=10), "to 9"),
        (lambda queue: queue.put("x", ttl=0), "above zero"),
        (lambda queue: queue.put("x", unique=""), "1 to 256"),
        (lambda queue: queue.put_many([b"x"], [b"a", b"b"]), "1 values"),
        (lambda queue: queue.put("x", headers={"stentor-delay": bytes([1, 0, 0, 0, 0, 0, 0, 0])}), "use client.queue"),
        (lambda queue: queue.peek(0), "1 to"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(jobs, call, hint):
    with pytest.raises(InvalidArgument, match=hint):
        call(jobs)


def test_a_topic_that_is_no_queue(client, name):
    client.create_topic(name)
    with pytest.raises(InvalidArgument, match="is no queue"):
        client.queue(name)
    with pytest.raises(InvalidArgument, match="setting of queues"):
        client.create_topic(f"{name}.b", max_attempts=3)
    with pytest.raises(InvalidArgument, match="prefetch"):
        client.queue(f"{name}.c", prefetch=0)
    client.create_topic(f"{name}.d", kind="queue")
    with pytest.raises(InvalidArgument, match="cannot be changed"):
        client.alter_topic(f"{name}.d", ordered_by="key")


def test_the_same_for_async_code(shared, name):
    async def work():
        async with stentor.connect_async(shared.url) as client, client.queue(name) as queue:
            await queue.put_many([b"1", b"2", b"3"])
            job = await queue.get(timeout=5)
            await queue.ack(job)
            job = await queue.get(timeout=5)
            await queue.nack(job, delay=0)
            seen = []
            async for job in queue:
                seen.append((job.value, job.attempt))
                if len(seen) == 2:
                    break
            async with asyncio.timeout(10):
                while (await queue.describe()).finished < 2:  # the first of these two is told soon
                    pass
            return sorted(seen)

    assert asyncio.run(work()) == [(b"2", 2), (b"3", 1)]


def test_a_pool_plugs_in_by_three_operations(shared, name):
    async def work():
        async with stentor.connect_async(shared.url) as client, client.queue(name) as queue:
            await queue.put_many([b"1", b"2", b"3"])
            consumer = await queue._core.consume()
            jobs = []
            while len(jobs) < 3:
                jobs += await consumer.take(10, timeout=5)
            await consumer.done(jobs[:2])
            await consumer.failed_jobs([(jobs[2], ValueError("bad"))])
            with pytest.raises(LeaseLost):
                await consumer.done(jobs[:1])
            return await queue.describe()

    info = asyncio.run(work())
    assert (info.finished, info.waiting) == (2, 1)


def test_whoever_waits_gets_a_job_while_others_take_long(client, name):
    """Room for one is enough to ask for one: a pool with as many workers as jobs it may hold has none idle."""
    with make(client, name) as queue, client.queue(name, prefetch=4) as pool:
        queue.put_many([b"%d" % number for number in range(4)])
        long = [pool.get(timeout=5) for _ in range(4)]
        queue.put("next")
        pool.ack(long[0])
        assert pool.get(timeout=5).value == b"next"


def test_a_consumer_that_holds_nothing_leaves_jobs_to_others(shared, name, wait_until):
    async def work():
        async with (
            stentor.connect_async(shared.url) as client,
            client.queue(name) as queue,
            client.queue(name) as other,
        ):
            await queue.put_many([b"1", b"2", b"3"])
            consumer = await queue._core.consume()
            begun = await consumer.take(1, timeout=5)
            consumer.hold_at_most(0)
            await queue.put("4")
            found = [await other.get(timeout=5) for _ in range(3)]
            assert sorted((job.value, job.attempt) for job in found) == [(b"2", 1), (b"3", 1), (b"4", 1)]
            await consumer.done(begun)
            for job in found:
                await other.ack(job)
            await other.close()  # else it might get the next one
            consumer.hold_at_most(5)
            await queue.put("5")
            return (await queue.get(timeout=5)).value

    assert asyncio.run(work()) == b"5"


def test_calls_that_waited_in_vain_leave_nothing_behind(jobs):
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            jobs.get(timeout=0.01)
    assert not jobs._core.consumer._waiting


class UnspeakableError(Exception):
    def __str__(self):
        raise ValueError


@pytest.mark.parametrize("error", [ValueError("bad name: \udc80"), UnspeakableError()])
def test_an_error_that_cannot_be_sent_as_it_is_ends_no_consumer(client, name, error, wait_until):
    with make(client, name, max_attempts=1) as queue:
        queue.put("bad")
        queue.nack(queue.get(timeout=5), error=error)
        queue.put("good")
        assert drain(queue, 1)[0].value == b"good"
        wait_until(lambda: queue.describe().died == 1, "the bad one is a dead letter")


def test_a_dead_job_with_as_many_headers_as_there_may_be_is_buried(client, name, wait_until):
    with make(client, name, max_attempts=1) as queue:
        queue.put("job", headers=[(f"h{number}", b"x") for number in range(1_000)])
        queue.nack(queue.get(timeout=5), error="bad")
        wait_until(lambda: queue.describe().died == 1, "it is a dead letter")


def test_many_large_jobs_are_put_at_once(client, name):
    with make(client, name) as queue:
        assert queue.put_many([b"v" * 100_000] * 200) == 200
        assert len(drain(queue, 200)) == 200
