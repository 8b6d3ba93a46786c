"""Maps whose keys collide by choice: they cost a reader no more than others of their size."""

import time

import msgspec
import pytest

from stentor.errors import InvalidArgument, LimitExceeded, ProtocolError, StentorError
from stentor.wire import messages
from stentor.wire.frames import Kind

WORD = 2**64
PRIME_1, PRIME_2, PRIME_5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
BUDGET_S = 0.05  # of processor time: what others on the machine do does not count


def collisions(count):
    """Lists of two numbers that Python's hash of tuples, which has no key, cannot tell apart."""

    def turned(number, bits):
        return (number << bits | number >> (64 - bits)) % WORD

    found, first = [], 1
    goal = turned(12345 * pow(PRIME_1, -1, WORD) % WORD, 33)
    while len(found) < count:
        halfway = turned((PRIME_5 + first * PRIME_2) % WORD, 31) * PRIME_1 % WORD
        second = (goal - halfway) * pow(PRIME_2, -1, WORD) % WORD
        if second < 2**61 - 1:
            found.append((first, second))
        first += 1
    return found


def hostile_map(count):
    packed = b"".join(msgspec.msgpack.encode(key) + b"\x00" for key in collisions(count))
    return b"\xdf" + count.to_bytes(4, "big") + packed


@pytest.fixture(scope="module")
def hostile():
    """Nearly a megabyte."""
    keys = collisions(100)
    assert len({hash(key) for key in keys}) == 1, "these keys no longer collide: find others"
    return msgspec.Raw(hostile_map(50_000))


def cost(body, kind):
    """The processor time that a message takes to be understood, or not."""
    began, error = time.thread_time(), None
    try:
        messages.decode(body, kind)
    except StentorError as refusal:
        error = refusal
    return time.thread_time() - began, error


REQUESTS = {
    "instead of settings": lambda bad: {"type": "CreateTopic", "name": "t", "settings": bad},
    "as an unknown setting": lambda bad: {"type": "CreateTopic", "name": "t", "settings": {"x": bad}},
    "as a known setting": lambda bad: {"type": "CreateTopic", "name": "t", "settings": {"partitions": bad}},
    "instead of changes": lambda bad: {"type": "AlterTopic", "name": "t", "changes": bad},
    "as recorded ends": lambda bad: {"type": "MarkRecorded", "topic": "t", "ends": bad},
    "in an unknown field": lambda bad: {"type": "DeleteTopic", "name": "t", "x": bad},
}


@pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS)
def test_a_request_with_colliding_keys_is_soon_done_with(hostile, make):
    seconds, _ = cost(msgspec.msgpack.encode(make(hostile)), messages.Request)
    assert seconds < BUDGET_S


ANSWERS = {
    "details of an error": (lambda bad: {"code": "x", "message": "m", "detail": bad}, messages.Failure),
    "one detail of an error": (lambda bad: {"code": "x", "message": "m", "detail": {"a": bad}}, messages.Failure),
    "statistics": (lambda bad: {"type": "Statistics", "statistics": bad}, messages.Response),
    "something inside statistics": (lambda bad: {"type": "Statistics", "statistics": {"a": bad}}, messages.Response),
    "deep inside statistics": (
        lambda bad: {"type": "Statistics", "statistics": {"a": [{"b": [[bad]]}]}},
        messages.Response,
    ),
}


@pytest.mark.parametrize(("make", "kind"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_of_a_hostile_broker_is_refused_soon(hostile, make, kind):
    seconds, error = cost(msgspec.msgpack.encode(make(hostile)), kind)
    assert seconds < BUDGET_S
    assert isinstance(error, ProtocolError)


@pytest.mark.parametrize("shift", [0, 8, 20, 32, 40, 44, 47])
def test_statistics_with_the_worst_numbers_as_keys_cost_little(shift):
    numbers = {number << shift: 1 for number in range(1, 50_000)}
    seconds, error = cost(
        msgspec.msgpack.encode({"type": "Statistics", "statistics": {"a": numbers}}), messages.Response
    )
    assert error is None
    assert seconds < BUDGET_S


def test_as_many_recorded_ends_as_may_be_named_cost_little():
    """Their keys are small numbers; the worst choice of them is harmless."""
    ends = {number << 22: 1 for number in range(1_024)}
    seconds, error = cost(
        msgspec.msgpack.encode({"type": "MarkRecorded", "topic": "t", "ends": ends}), messages.Request
    )
    assert error is None
    assert seconds < BUDGET_S


def test_a_request_larger_than_any_needs_to_be_is_refused(attacked, raw):
    connection = raw(attacked.url).greet()
    request = {"type": "CreateTopic", "name": "t", "settings": msgspec.Raw(hostile_map(5_000))}
    connection.send(Kind.REQUEST, 1, msgspec.msgpack.encode(request))
    assert connection.refusal().code == LimitExceeded.code


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"colour": 1}, "A topic has no setting 'colour'."), ({"partitions": "x"}, "A topic setting is wrong: ")],
)
def test_a_setting_that_is_wrong_is_still_told_in_words(attacked, raw, settings, told):
    connection = raw(attacked.url).greet()
    for request in (
        messages.CreateTopic(name="t", settings=settings),
        messages.AlterTopic(name="t", changes=settings),
    ):
        with pytest.raises(InvalidArgument) as caught:
            connection.ask(request)
        assert caught.value.message.startswith(told)
