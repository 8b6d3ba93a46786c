"""Requests and their responders, with one broker."""

import asyncio
import threading
import time

import pytest

import stentor
from stentor.broker.sessions.requests import Requests
from stentor.core import service_limits
from stentor.errors import Closed, DeadlineExceeded, InvalidArgument, LimitExceeded, TopicReserved
from stentor.request_errors import HandlerFailed, NoResponders, NotHandled, ResponderLost
from stentor.testing import broker
from stentor.wire.messages import ListTopics
from stentor.wire.service_messages import FindResponders

WAIT_S = 30
A_WHILE = threading.Event()  # nobody sets it


def until(holds, what):
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        A_WHILE.wait(0.005)


async def until_cancelled(request):
    async with asyncio.timeout(WAIT_S):
        while not request.cancelled:  # noqa: ASYNC110 - it is a flag
            await asyncio.sleep(0.005)


@pytest.fixture
def other(shared):
    with shared.client() as connected:
        yield connected


def echo(request):
    return stentor.Reply(request.value, [*request.headers, ("topic", request.topic.encode())])


def test_a_request_is_answered_with_value_and_headers(client, other):
    with other.serve("svc.echo", echo):
        reply = client.request("svc.echo", "hello", headers={"a": "b"}, timeout=WAIT_S)
    assert (reply.value, reply.headers) == (b"hello", [("a", b"b"), ("topic", b"svc.echo")])


@pytest.mark.parametrize("value", [None, b"", b"x", "é"])
def test_values_arrive_as_they_are(client, other, value):
    with other.serve("svc.plain", lambda request: request.value):
        expected = value.encode() if isinstance(value, str) else value
        assert client.request("svc.plain", value, timeout=WAIT_S).value == expected


def test_caller_and_handler_see_one_correlation_and_the_deadline(client, other):
    seen = []
    with other.serve("svc.seen", lambda request: seen.append((request.correlation, request.time_left()))):
        reply = client.request("svc.seen", timeout=20)
    assert seen[0][0] == reply.correlation
    assert 15 < seen[0][1] <= 20


def test_without_responders_the_answer_comes_at_once(client, other):
    began = time.monotonic()
    with pytest.raises(NoResponders) as caught:
        client.request("svc.nobody", "x", timeout=WAIT_S)
    assert time.monotonic() - began < WAIT_S / 2
    assert caught.value.object == "svc.nobody"
    with other.serve("svc.nobody", echo):
        client.request("svc.nobody", "x", timeout=WAIT_S)
    with pytest.raises(NoResponders):
        client.request("svc.nobody", "x", timeout=WAIT_S)


def test_what_a_handler_raises_is_told_with_its_message(client, other):
    def fail(request):
        raise KeyError(f"no {request.value.decode()}")

    with other.serve("svc.fail", fail), pytest.raises(HandlerFailed) as caught:
        client.request("svc.fail", "apples", timeout=WAIT_S)
    assert "no apples" in str(caught.value)
    assert caught.value.error == "KeyError"


@pytest.mark.parametrize("result", [7, object(), ["x"], {"a": 1}])
def test_an_answer_that_is_no_text_is_the_handlers_mistake(client, other, result):
    with other.serve("svc.odd", lambda _: result), pytest.raises(HandlerFailed, match="an answer is bytes"):
        client.request("svc.odd", timeout=WAIT_S)


def test_what_is_too_large_is_refused_on_both_ways(client, other):
    large = bytes(service_limits.ASK_BYTES_MAX)
    with other.serve("svc.large", lambda _: large):
        with pytest.raises(LimitExceeded):
            client.request("svc.large", large, timeout=WAIT_S)
        with pytest.raises(HandlerFailed, match="limit"):
            client.request("svc.large", "x", timeout=WAIT_S)


def test_the_deadline_is_kept_and_the_request_cancelled(client, other):
    seen = []

    def slow(request):
        seen.append(request)
        until(lambda: request.cancelled, "the handler is told that nobody waits")

    with other.serve("svc.slow", slow):
        with pytest.raises(DeadlineExceeded, match="may have seen it"):
            client.request("svc.slow", timeout=0.2)
        until(lambda: seen[0].cancelled, "cancelled")
        assert seen[0].time_left() == 0


def test_requests_are_spread_over_responders(client, shared):
    counts = {0: 0, 1: 0, 2: 0}

    def responder(number):
        def count(_):
            counts[number] += 1

        return count

    clients = [shared.client() for _ in counts]
    services = [each.serve("svc.spread", responder(number)) for number, each in enumerate(clients)]
    for _ in range(60):
        client.request("svc.spread", timeout=WAIT_S)
    for each in (*services, *clients):
        each.close()
    assert min(counts.values()) >= 15


def test_a_slow_responder_does_not_hold_up_the_others(client, shared):
    release, fast = threading.Event(), []

    def slow(_):
        assert release.wait(WAIT_S)

    def ask():
        client.request("svc.uneven", "x", timeout=WAIT_S)

    with (
        shared.client() as first,
        shared.client() as second,
        first.serve("svc.uneven", slow, concurrency=1),
        second.serve("svc.uneven", fast.append, concurrency=1),
    ):
        waiting = [threading.Thread(target=ask) for _ in range(20)]
        for each in waiting:
            each.start()
        until(lambda: len(fast) >= 18, "all but those that the slow one has are answered")
        release.set()
        for each in waiting:
            each.join(WAIT_S)


def test_a_responder_that_dies_leaves_the_outcome_unknown(client, shared):
    begun = threading.Event()
    dying = shared.client()
    service = dying.serve("svc.dies", lambda _: begun.set() or A_WHILE.wait(0.3) or None)
    failures = []

    def ask():
        try:
            client.request("svc.dies", timeout=WAIT_S)
        except stentor.StentorError as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(WAIT_S)
    dying._core.loop.call_soon_threadsafe(dying._core.link.connection.abort)
    asking.join(WAIT_S)
    assert [type(error) for error in failures] == [ResponderLost]
    service.close()
    dying.close()


def test_an_idempotent_request_goes_to_another_responder(client, shared):
    calls = []
    dying = shared.client()

    def dies(_):
        calls.append("dying")
        dying._core.loop.call_soon_threadsafe(dying._core.link.connection.abort)
        A_WHILE.wait(0.2)
        return "too late"

    with (
        dying.serve("svc.again", dies),
        shared.client() as living,
        living.serve("svc.again", lambda _: "answered") as service,
    ):
        replies = {client.request("svc.again", timeout=WAIT_S, idempotent=True).value for _ in range(4)}
        assert replies == {b"answered"}
        assert service.statistics()["answered"] == 4
    assert "dying" in calls
    dying.close()


def test_a_responder_registers_again_when_its_link_is_lost(client, other, shared):
    with other.serve("svc.back", echo) as service:
        client.request("svc.back", "x", timeout=WAIT_S)
        other._core.loop.call_soon_threadsafe(other._core.link.connection.abort)
        until(lambda: other._core.links_made == 2, "it is noticed")
        until(lambda: service.statistics()["registered"], "it registers again")
        assert client.request("svc.back", "y", timeout=WAIT_S).value == b"y"


def test_a_closed_service_finishes_what_was_begun_and_gives_the_rest_back(client, shared):
    begun, release, answers = threading.Event(), threading.Event(), []

    def handler(request):
        begun.set()
        assert release.wait(WAIT_S)
        return b"old " + request.value

    with shared.client() as first, shared.client() as second:
        service = first.serve("svc.closing", handler, concurrency=1)
        asking = [
            threading.Thread(
                target=lambda n=n: answers.append(client.request("svc.closing", f"{n}", timeout=WAIT_S).value)
            )
            for n in range(2)
        ]
        asking[0].start()
        assert begun.wait(WAIT_S)
        asking[1].start()
        until(lambda: service.statistics()["in_work"] == 2, "the second one is there, and not begun")
        closing = threading.Thread(target=service.close)
        with second.serve("svc.closing", lambda request: b"new " + request.value):
            closing.start()
            asking[1].join(WAIT_S)
            release.set()
            closing.join(WAIT_S)
            asking[0].join(WAIT_S)
    assert sorted(answers) == [b"new 1", b"old 0"]


def test_streamed_answers_arrive_in_order_and_in_full(client, other):
    def count(request):
        for number in range(int(request.value)):
            yield f"{number}".encode()

    with other.serve("svc.count", count):
        values = [int(reply.value) for reply in client.request_stream("svc.count", "5000", timeout=WAIT_S)]
    assert values == list(range(5000))


def test_a_stream_waits_for_a_caller_that_is_slow(client, other):
    made = []

    def large(_):
        for number in range(100):
            made.append(number)
            yield bytes(50_000)

    with other.serve("svc.large-stream", large):
        stream = client.request_stream("svc.large-stream", timeout=WAIT_S)
        parts = iter(stream)
        next(parts)
        until(lambda: len(made) >= 5, "some are made ahead")
        A_WHILE.wait(0.1)
        assert len(made) <= 2 + service_limits.STREAM_CREDIT_BYTES // 50_000 + 1
        assert sum(len(part.value) for part in parts) == 99 * 50_000


def test_a_stream_that_is_closed_early_ends_the_generator(client, other):
    ended = threading.Event()

    def endless(_):
        try:
            while True:
                yield b"x" * 1000
        finally:
            ended.set()

    with other.serve("svc.endless", endless):
        with client.request_stream("svc.endless", timeout=WAIT_S) as stream:
            assert next(iter(stream)).value == b"x" * 1000
        assert ended.wait(WAIT_S)


def test_a_generator_that_raises_is_told_after_its_parts(client, other):
    def breaks(_):
        yield "one"
        raise ValueError("broken")

    with other.serve("svc.breaks", breaks):
        stream = client.request_stream("svc.breaks", timeout=WAIT_S)
        values = []
        with pytest.raises(HandlerFailed, match="broken"):
            values.extend(reply.value for reply in stream)
        with pytest.raises(InvalidArgument, match="request_stream"):
            client.request("svc.breaks", timeout=WAIT_S)


def test_a_plain_answer_is_a_stream_of_one(client, other):
    with other.serve("svc.one", lambda _: "one"):
        assert [reply.value for reply in client.request_stream("svc.one", timeout=WAIT_S)] == [b"one"]


def test_the_parts_of_an_answer_are_taken_one_by_one(client, other):
    def parts(_):
        yield from (b"a", b"b")

    with other.serve("svc.parts", parts):
        stream = client.request_stream("svc.parts", timeout=WAIT_S)
        assert [stream.get(timeout=WAIT_S).value, stream.get().value] == [b"a", b"b"]
        with pytest.raises(Closed, match="no more parts"):
            stream.get()


def test_a_part_that_does_not_come_in_time_is_late_and_the_answer_goes_on(client, other):
    go_on = threading.Event()

    def parts(_):
        go_on.wait(WAIT_S)
        yield b"late"

    with other.serve("svc.late-parts", parts):
        stream = client.request_stream("svc.late-parts", timeout=WAIT_S)
        with pytest.raises(DeadlineExceeded):
            stream.get(timeout=0.05)
        with pytest.raises(InvalidArgument):
            stream.get(timeout=-1)
        go_on.set()
        assert stream.get(timeout=WAIT_S).value == b"late"


def test_an_answer_that_does_not_come_in_time_is_late_in_async_code_too(shared):
    async def ask():
        async def never(_):
            await asyncio.get_running_loop().create_future()
            yield b""

        async with stentor.connect_async(shared.url) as client, client.serve("svc.never-parts", never):
            errors = []
            stream = client.request_stream("svc.never-parts", timeout=0.3)
            try:
                async for _ in stream:
                    pass
            except DeadlineExceeded as error:
                errors.append(error)
            stream = client.request_stream("svc.never-parts", timeout=WAIT_S)
            with pytest.raises(DeadlineExceeded):
                await stream.get(timeout=0.05)
            await stream.close()
            return errors

    (error,) = asyncio.run(ask())
    assert error.operation == "request"


def test_requests_that_were_given_up_count_until_the_broker_has_answered_them(shared, monkeypatch):
    """However many are given up while a broker stands still, the next one waits for its turn and is answered."""
    hold, serve = threading.Event(), Requests.serve

    async def held(desk, session, request):
        if isinstance(request, ListTopics):
            while not hold.is_set():  # noqa: ASYNC110 - it is set in another thread
                await asyncio.sleep(0.005)
        return await serve(desk, session, request)

    monkeypatch.setattr(Requests, "serve", held)

    async def ask():
        async with stentor.connect_async(shared.url) as client:
            for _ in range(4):
                asked = [client.topics(timeout=0.1) for _ in range(40)]
                outcomes = await asyncio.gather(*asked, return_exceptions=True)
                assert {type(outcome) for outcome in outcomes} == {DeadlineExceeded}
            waits = asyncio.ensure_future(client.topics(timeout=WAIT_S))
            await asyncio.sleep(0)
            hold.set()
            await waits
            again = await asyncio.gather(*[client.topics(timeout=WAIT_S) for _ in range(200)])
            assert len(again) == 200

    asyncio.run(ask())


def test_many_callers_ask_once_where_a_topic_is_served(shared, monkeypatch):
    asked, serve = [], Requests.serve

    async def counted(desk, session, request):
        if isinstance(request, FindResponders):
            asked.append(request)
        return await serve(desk, session, request)

    monkeypatch.setattr(Requests, "serve", counted)

    async def ask():
        async with stentor.connect_async(shared.url) as client:
            requests = [client.request("svc.unserved-yet", timeout=WAIT_S) for _ in range(500)]
            outcomes = await asyncio.gather(*requests, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {NoResponders}

    asyncio.run(ask())
    assert len(asked) <= 5


def test_a_stream_without_responders_says_so(client):
    with pytest.raises(NoResponders):
        list(client.request_stream("svc.nobody-streams", timeout=WAIT_S))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda client: client.request("not a name", "x"), InvalidArgument),
        (lambda client: client.request("svc.x", 7), InvalidArgument),
        (lambda client: client.request("svc.x", "x", timeout=0), InvalidArgument),
        (lambda client: client.request("svc.x", "x", timeout=1e9), InvalidArgument),
        (lambda client: client.request("svc.x", "x", timeout="soon"), InvalidArgument),
        (lambda client: client.serve("svc.x", "no function"), InvalidArgument),
        (lambda client: client.serve("svc.x", echo, concurrency=0), InvalidArgument),
        (lambda client: client.serve("svc.x", echo, concurrency=True), InvalidArgument),
        (lambda client: client.serve("not a name", echo), InvalidArgument),
        (lambda client: client.serve("_stentor.x", echo), TopicReserved),
    ],
)
def test_mistakes_of_the_caller_are_told_in_words(client, call, error):
    with pytest.raises(error):
        call(client)


def test_a_client_serves_a_topic_once(client):
    with client.serve("svc.once", echo), pytest.raises(InvalidArgument, match="already"):
        client.serve("svc.once", echo)
    with client.serve("svc.once", echo):
        assert client.request("svc.once", "x", timeout=WAIT_S).value == b"x"


def test_a_coroutine_is_not_for_threads(client, other):
    async def late(_):
        return "never"

    with other.serve("svc.coroutine", late), pytest.raises(HandlerFailed, match="connect_async"):
        client.request("svc.coroutine", timeout=WAIT_S)


def test_a_closed_client_asks_nothing(shared):
    closed = shared.client()
    closed.close()
    with pytest.raises(Closed):
        closed.request("svc.echo")


def test_a_client_that_is_closed_with_a_service_ends_it(client, shared):
    with shared.client() as serving:
        service = serving.serve("svc.ends", echo)
        client.request("svc.ends", "x", timeout=WAIT_S)
    with pytest.raises(NoResponders):
        client.request("svc.ends", "x", timeout=WAIT_S)
    service.close()


def test_ten_thousand_requests_at_once_are_all_answered(shared):
    """And five hundred more, which wait at the client until there is room."""

    async def ask():
        async with stentor.connect_async(shared.url) as caller, stentor.connect_async(shared.url) as responder:

            async def double(request):
                return request.value * 2

            async with responder.serve("svc.many", double):
                number = service_limits.ASKS_PER_CLIENT_MAX + 500
                replies = await asyncio.gather(
                    *(caller.request("svc.many", f"{n}", timeout=2 * WAIT_S) for n in range(number))
                )
                assert [reply.value for reply in replies] == [f"{n}{n}".encode() for n in range(number)]

    asyncio.run(ask())


def test_async_handlers_work_at_the_same_time_up_to_their_limit(shared):
    async def ask():
        at_work, most = 0, 0

        async def handler(_):
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.01)
            at_work -= 1

        async with (
            stentor.connect_async(shared.url) as client,
            client.serve("svc.async", handler, concurrency=5),
        ):
            await asyncio.gather(*(client.request("svc.async", timeout=WAIT_S) for _ in range(40)))
        assert most == 5

    asyncio.run(ask())


def test_async_streams_and_errors(shared):
    async def ask():
        async def count(request):
            for number in range(int(request.value)):
                yield f"{number}"
            if request.value == b"3":
                raise RuntimeError("three")

        async with (
            stentor.connect_async(shared.url) as client,
            client.serve("svc.async-count", count) as service,
        ):
            found = [reply.value async for reply in client.request_stream("svc.async-count", "2", timeout=WAIT_S)]
            assert found == [b"0", b"1"]
            with pytest.raises(HandlerFailed, match="three"):
                async for _ in client.request_stream("svc.async-count", "3", timeout=WAIT_S):
                    pass
            async with client.request_stream("svc.async-count", "100000", timeout=WAIT_S) as stream:
                async for _ in stream:
                    break
            assert not await service.wait(timeout=0.01)

    asyncio.run(ask())


def test_a_request_that_is_cancelled_by_its_task_is_cancelled_at_the_responder(shared):
    async def ask():
        seen, begun = [], asyncio.Event()

        async def handler(request):
            seen.append(request)
            begun.set()
            await until_cancelled(request)

        async with (
            stentor.connect_async(shared.url) as client,
            stentor.connect_async(shared.url) as other,
            other.serve("svc.cancel", handler),
        ):
            task = asyncio.create_task(client.request("svc.cancel", timeout=WAIT_S))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_cancelled(seen[0])

    asyncio.run(ask())


def test_statistics_count_requests(shared, client, other):
    before = client.statistics()["services"]
    with other.serve("svc.counted", echo):
        for _ in range(3):
            client.request("svc.counted", timeout=WAIT_S)
        found = client.statistics()["services"]
        assert found["handed_over"] == before["handed_over"] + 3
        assert (found["topics"], found["responders"], found["in_work"]) == (1, 1, 0)


def test_a_broker_that_stops_gives_back_what_waits():
    with broker() as local:
        begun, failures = threading.Event(), []
        responder, caller = local.client(), local.client(timeout=5)
        service = responder.serve("svc.stop", lambda _: begun.set() or A_WHILE.wait(0.5) or None, concurrency=1)

        def ask():
            try:
                caller.request("svc.stop", timeout=3)
            except stentor.StentorError as error:
                failures.append(error)

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for each in asking:
            each.start()
        assert begun.wait(WAIT_S)
        until(lambda: caller.statistics()["services"]["queued"] == 2, "two wait at the broker")
    for each in asking:
        each.join(WAIT_S)
    assert {type(error) for error in failures} <= {ResponderLost, DeadlineExceeded, NotHandled}
    assert len(failures) == 4
    service.close()
    responder.close()
    caller.close()
