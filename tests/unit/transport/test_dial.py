import ast
import asyncio
import random
from pathlib import Path

import pytest

import stentor
from stentor import limits
from stentor.errors import InvalidArgument
from stentor.transport.address import Address
from stentor.transport.dial import Backoff, dial, jittered_s

SOURCE = Path(stentor.__file__).parent


@pytest.fixture
def spans(monkeypatch):
    """The spans from which pauses were drawn; each pause is the longest possible."""
    drawn = []

    def longest(low, high):
        drawn.append((low, high))
        return high

    monkeypatch.setattr(random, "uniform", longest)
    return drawn


class Loop:
    """A loop in which connections are made as a test says."""

    def __init__(self, answer):
        self.asked = []
        self._answer = answer

    async def create_connection(self, factory, host, port):
        self.asked.append((host, port))
        await self._answer()
        protocol = factory()
        return object(), protocol


async def at_once():
    pass


async def never():
    await asyncio.get_running_loop().create_future()


async def refused():
    raise ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize("address", ["[::1]:7440", Address("::1", 7440)])
def test_dialling_gives_the_connection_that_was_made(address):
    loop, protocol = Loop(at_once), object()
    assert asyncio.run(dial(loop, address, lambda: protocol, None)) is protocol
    assert loop.asked == [("::1", 7440)]


def test_a_deadline_ends_an_attempt():
    async def run():
        await dial(Loop(never), "a:1", object, asyncio.get_running_loop().time() + 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_what_the_system_says_is_told_as_it_is():
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(dial(Loop(refused), "a:1", object, None))


def test_what_is_no_address_is_not_dialled():
    loop = Loop(at_once)
    with pytest.raises(InvalidArgument):
        asyncio.run(dial(loop, "nowhere", object, None))
    assert loop.asked == []


def test_pauses_are_drawn_from_spans_that_double_up_to_a_bound(spans):
    backoff = Backoff()
    pauses = [backoff.next_s() for _ in range(8)]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert pauses[0] == limits.RECONNECT_DELAY_S
    assert pauses[-1] == limits.RECONNECT_DELAY_S_MAX
    assert {low for low, _ in spans} == {0}


def test_after_a_success_pauses_begin_small_again(spans):
    backoff = Backoff()
    first = backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == first


def test_the_first_attempt_may_be_made_at_once(spans):
    backoff = Backoff(first_s=0.0)
    assert [backoff.next_s() for _ in range(3)] == [0.0, limits.RECONNECT_DELAY_S, 2 * limits.RECONNECT_DELAY_S]


def test_where_many_come_back_the_span_is_as_long_as_they_need(spans):
    backoff = Backoff(first_s=0.0)
    assert [backoff.next_s(0.3) for _ in range(5)] == [0.3, 0.3, 0.3, 0.3, 0.4]


def test_who_will_not_answer_soon_is_asked_seldom(spans):
    backoff = Backoff()
    backoff.slow_down()
    assert backoff.next_s() == limits.RECONNECT_DELAY_S_MAX


def test_a_pause_is_between_its_bounds():
    assert all(0.5 <= jittered_s(0.5, 1.0) <= 1.0 for _ in range(100))


# What cuts something in two by itself, and why.
CUT_BY_THEMSELVES = {
    "broker/listener_plans.py": "a listener may name port 0, and is no place to connect to",
    "broker/sessions/listeners.py": "the same",
    "storage/inspect.py": "a line of /proc/locks is no address",
}


def test_there_is_one_way_out():
    """Nobody else opens a connection in a loop, draws a pause, or cuts an address in two."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        for call in calls:
            text = ast.unparse(call)
            if (
                text.startswith("random.uniform(")
                or ("create_connection(" in text and not text.startswith("socket."))
                or text.endswith((".rpartition(':')", ".strip('[]')"))
            ):
                found.setdefault(name, []).append(text)
    assert set(found) - {"transport/dial.py", "transport/address.py"} == set(CUT_BY_THEMSELVES)
