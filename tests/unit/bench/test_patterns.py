"""The pure parts of the benchmark of tables: its data, its rows, its targets, its command line."""

import asyncio
import json
import sys
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from bench.model import BenchError, NotAvailableError
from bench.patterns import data, queue, standstill, tasks
from bench.patterns.__main__ import chosen_plan, parsed
from bench.patterns.clients import Crowd, Light
from bench.patterns.faults import Account
from bench.patterns.plan import QUICK, Plan
from bench.patterns.queue_rabbitmq import IN_FLIGHT_MAX, _Filling
from bench.patterns.rows import TARGETS, Row, Target, add, merged, rounded, write
from bench.patterns.slow import KINDS, NOBODY, POLICIES, Phase, check_complete, compared, order_of
from bench.patterns.standstill import AFTER_S, BEFORE_S, undisturbed
from bench.patterns.tasks import _watched
from bench.patterns.updates import digest, latencies, shared

from stentor.wire import frames, messages
from stentor.wire.frames import Kind


def test_keys_and_values_are_of_the_stated_size_and_say_their_number():
    for number in (0, 7, 999_999, 10**7):
        assert len(data.key_of(number)) == data.KEY_BYTES
        assert len(data.value_of(number)) == data.VALUE_BYTES
        assert data.number_of(data.value_of(number)) == number
    assert len({data.value_of(number)[8:] for number in range(5000)}) == 5000


def test_parts_are_all_keys_once():
    found = [(key, value) for keys, values in data.parts(2500, 1000) for key, value in zip(keys, values, strict=True)]
    assert found == [(data.key_of(number).encode(), data.value_of(number)) for number in range(2500)]


def test_a_sample_is_the_same_in_every_process():
    assert data.sample(1000, 5, 3) == data.sample(1000, 5, 3) != data.sample(1000, 5, 4)


def test_samples_of_one_figure_become_one_row_with_its_median():
    rows = []
    for seconds in (3.0, 1.0, 2.0):
        add(rows, "clone", "stentor", "s", time_to_load=seconds)
    (row,) = rows
    assert (row.figure, row.value, row.unit) == ("time to load", 2.0, "s")
    facts = row.as_dict()
    assert (facts["low"], facts["high"], facts["repetitions"]) == (1.0, 3.0, 3)


def test_a_row_without_samples_says_why():
    facts = Row("clone", "redis", "time", "s", note="not available: no redis-server").as_dict()
    assert (facts["value"], facts["repetitions"], facts["note"]) == (None, 0, "not available: no redis-server")
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(("value", "expected"), [(0.123456, 0.1235), (1233.4, 1233.0), (123456.7, 123457), (0, 0)])
def test_figures_have_few_digits(value, expected):
    assert rounded(value) == expected


def test_the_best_way_of_a_peer_counts():
    rows = [
        Row("clone", "stentor", "time", "s", [1.0]),
        Row("clone", "redis bare", "time", "s", [3.0]),
        Row("clone", "redis hiredis", "time", "s", [9.0]),
        Row("get", "redis", "time", "s", [0.1]),
    ]
    assert Target("clone", "time", times=2, system="redis").judge(rows) == ("3.0 times redis, at least 2", True)
    assert Target("clone", "time", times=4, system="redis").judge(rows) == ("3.0 times redis, at least 4", False)
    named = Target("clone", "time", times=4, system="redis hiredis")
    assert named.judge(rows) == ("9.0 times redis hiredis, at least 4", True)


@pytest.mark.parametrize("system", ["nats", "redis"])
def test_what_was_not_measured_is_not_judged(system):
    rows = [Row("clone", "stentor", "time", "s", [1.0]), Row("clone", "redis", "time", "s", note="not available")]
    assert Target("clone", "time", times=2, system=system).judge(rows) is None
    assert Target("large", "memory", most=5).judge(rows) is None


@pytest.mark.parametrize(("most", "met"), [(5, True), (4, True), (3.9, False)])
def test_a_limit_is_judged_alone(most, met):
    verdict = Target("large", "memory", most=most).judge([Row("large", "stentor", "memory", "B", [4.0])])
    assert verdict is not None
    assert verdict[1] is met


def test_works_that_were_not_measured_keep_their_rows(tmp_path):
    path = tmp_path / "patterns.json"
    write(
        [Row("clone", "stentor", "time", "s", [1.0]), Row("get", "stentor", "time", "ns", [5.0])],
        path,
        0.1,
        Plan(),
    )
    write([Row("clone", "stentor", "time", "s", [2.0])], path, 3.0, QUICK)
    content = json.loads(path.read_text())
    assert [(row["work"], row["value"]) for row in content["rows"]] == [("get", 5.0), ("clone", 2.0)]
    assert {work: (run["busy"], run["plan"]["clone_keys"]) for work, run in content["runs"].items()} == {
        "get": (False, Plan().clone_keys),
        "clone": (True, QUICK.clone_keys),
    }
    assert content["machine"]["cores"]
    assert merged([], []) == []


def test_the_command_line_changes_the_plan():
    assert chosen_plan(parsed([])) == Plan()
    assert chosen_plan(parsed(["--quick"])) == QUICK
    plan = chosen_plan(parsed(["--quick", "--clone-keys", "7", "--updates-s", "1.5", "--system", "redis"]))
    assert (plan.clone_keys, plan.updates_s, plan.get_keys) == (7, 1.5, QUICK.get_keys)
    assert (plan.wants("redis bare"), plan.wants("stentor")) == (True, False)


# --- updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "ways", "parts"), [(50, 3, [17, 17, 16]), (2, 5, [1, 1]), (4, 2, [2, 2])])
def test_copies_are_shared_evenly(number, ways, parts):
    assert shared(number, ways) == parts


def test_latency_runs_until_a_copy_is_seen_to_have_the_last_update_of_a_tick():
    due = [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert latencies(due, [(5, 0.5), (12, 1.5), (30, 3.25)]).tolist() == [0.5, 1.25, 0.25]


def test_a_copy_that_is_never_seen_at_the_end_is_an_error():
    with pytest.raises(BenchError, match="ended at 12"):
        latencies([(10, 1.0), (20, 2.0)], [(12, 1.5)])


def test_a_digest_depends_on_keys_and_values_and_not_on_their_order():
    assert digest({"a": b"1", "b": b"2"}) == digest({"b": b"2", "a": b"1"})
    assert len({digest(table) for table in ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {})}) == 4


# --- faults ---------------------------------------------------------------------------------------


def _account(numbers):
    """Updates of two keys, each acknowledged, written, told and in both copies."""
    account = Account()
    account.acknowledged = {number: offset for offset, number in enumerate(numbers)}
    account.log = list(enumerate(numbers))
    account.told = list(enumerate(numbers))
    copy = {data.key_of(number % 1000): (offset, data.value_of(number)) for offset, number in enumerate(numbers)}
    account.followed, account.fresh = dict(copy), dict(copy)
    return account


def _verdict(account):
    return account.lost(), account.doubled(), account.wrong()


def test_an_account_in_order_has_nothing_lost_doubled_or_wrong():
    assert _verdict(_account([0, 1, 1000, 1001])) == (0, 0, 0)


def test_an_update_that_nobody_acknowledged_may_be_missing():
    account = _account([0, 1, 3])
    del account.acknowledged[1]
    assert _verdict(account) == (0, 0, 0)


def test_acknowledged_updates_that_are_elsewhere_are_lost():
    account = _account([0, 1, 2])
    account.acknowledged[2] = 7
    assert account.lost() == 1
    account.acknowledged[5] = 1
    assert account.lost() == 2
    del account.told[0]
    assert account.lost() == 3


def test_what_a_compaction_took_from_the_log_is_lost_only_if_nothing_replaced_it():
    account = _account([0, 1, 1000])
    del account.log[0]
    assert account.lost() == 0
    account.log.pop()
    assert account.lost() == 2, "nothing of its key is left"


def test_updates_that_are_written_or_told_twice_are_counted():
    account = _account([0, 1, 1])
    assert account.doubled() == 1
    account.told.append((2, 1))
    assert account.doubled() == 2


@pytest.mark.parametrize("which", ["followed", "fresh"])
def test_a_copy_that_is_not_what_the_log_says_is_wrong(which):
    account = _account([0, 1])
    getattr(account, which)[data.key_of(1)] = (1, b"other")
    getattr(account, which)["more"] = (2, b"")
    assert account.wrong() == 2


# --- clients --------------------------------------------------------------------------------------


class _Transport:
    def __init__(self):
        self.written = []

    def write(self, data):
        self.written.append(data)


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_a_light_client_greets_opens_a_stream_and_answers_pings_however_bytes_come(size):
    async def main():
        crowd, transport = Crowd(topic_id=5), _Transport()
        client = Light(crowd)
        client.connection_made(transport)
        info = messages.BrokerInfo(id="b", cluster_id="c", version="1", address="stentor://b")
        received = b"".join(
            [
                frames.frame(Kind.WELCOME, 0, messages.encode(messages.Welcome(version=1, broker=info))),
                frames.frame(Kind.DELIVER, 1, frames.DELIVERY.pack(9, 1, 0, 9) + b"batches"),
                frames.frame(Kind.PING, 77, b""),
            ]
        )
        for start in range(0, len(received), size):
            client.data_received(received[start : start + size])
        assert [frames.HEADER.unpack_from(data)[1] for data in transport.written] == [
            Kind.HELLO,
            Kind.OPEN_STREAM,
            Kind.PONG,
        ]
        assert crowd.offsets == {client: 9}
        await crowd.until(9, 1, 5.0)
        client.connection_lost(None)
        with pytest.raises(BenchError, match="lost its connection"):
            await crowd.until(10, 1, 5.0)

    asyncio.run(main())


def test_confirmations_of_a_full_queue_come_one_by_one_or_together():
    """What RabbitMQ confirms out of order is counted once, and the next jobs follow."""
    filling = _Filling.__new__(_Filling)
    published, ends = [], []
    filling.library = SimpleNamespace(BasicProperties=dict)
    filling._channel = SimpleNamespace(basic_publish=lambda *_: published.append(1))
    filling._jobs, filling._value, filling._published, filling._waiting = 2_003, b"v", 0, set()
    filling.end = lambda: ends.append(len(published))

    def confirm(tag, *, multiple):
        filling._confirmed(SimpleNamespace(method=SimpleNamespace(delivery_tag=tag, multiple=multiple)))

    filling._go_on()
    assert len(published) == IN_FLIGHT_MAX
    confirm(2, multiple=False)
    confirm(3, multiple=True)
    assert (len(published), len(filling._waiting), ends) == (2_003, 2_000, [])
    confirm(2_003, multiple=True)
    assert ends == [2_003]


def test_tasks_are_timed_from_the_first_to_the_last(tmp_path):
    notes = tmp_path / "notes"
    notes.write_bytes(b"...")
    handled = SimpleNamespace(poll=lambda: notes.write_bytes(b"....") and None)
    assert 0 < _watched(notes, 4, handled) < 30e9
    with pytest.raises(BenchError, match="4 tasks are too few"):
        _watched(notes, 4, handled)
    with pytest.raises(BenchError, match="2 tasks were handled 4 times"):
        _watched(notes, 2, SimpleNamespace(poll=lambda: None))
    with pytest.raises(BenchError, match="ended with 1"):
        _watched(notes, 5, SimpleNamespace(poll=lambda: 1, returncode=1))


@pytest.mark.parametrize(("module", "said"), [("pika", "pika"), ("celery", "celery")])
def test_peers_that_are_not_installed_are_left_out(monkeypatch, module, said):
    monkeypatch.setitem(sys.modules, module, None)
    needed = queue._need_pika if module == "pika" else tasks._need_celery
    with pytest.raises(NotAvailableError, match=f"{said} package is not installed"):
        needed()


# --- slow -----------------------------------------------------------------------------------------


def _slow_verdicts(late_s=lambda _policy, _index: 0.01, calm=lambda _policy, _index: True, rounds=1):
    """The verdicts on 100 messages of each kind, late by so much."""
    order = [(number, policy) for number in range(rounds) for policy in KINDS]
    phases = [Phase(*each, 100.0 * place, 100.0 * place + 100) for place, each in enumerate(order)]
    sent = np.concatenate([phase.began + np.arange(100) for phase in phases])
    late = np.array([late_s(phase.policy, index) for phase in phases for index in range(100)])
    good = np.array([calm(phase.policy, index) for phase in phases for index in range(100)])
    rows = compared(phases, sent, late, good, lambda _: None)
    judged = {target.figure: target.judge(rows) for target in TARGETS if target.work == "slow"}
    return {figure: verdict[1] for figure, verdict in judged.items()}


def test_in_ten_rounds_each_kind_is_everywhere_and_follows_each_other_equally_often():
    orders = [order_of(number) for number in range(10)]
    places = Counter((place, kind) for order in orders for place, kind in enumerate(order))
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    assert len(places) == 25
    assert set(places.values()) == {2}
    assert len(pairs) == 20
    assert set(pairs.values()) == {2}


def test_who_is_late_beside_a_policy_misses_its_target_and_no_other():
    met = _slow_verdicts(lambda policy, index: 0.013 if policy == "skip" and index > 90 else 0.01)
    assert {figure for figure, well in met.items() if not well} == {"p99 ratio of skip"}
    assert len(met) == 2 * len(POLICIES)
    assert all(_slow_verdicts(lambda policy, _: 0.0119 if policy else 0.01).values())


def test_what_was_due_in_a_standstill_counts_for_no_kind():
    met = _slow_verdicts(lambda _, index: 0.5 if index > 90 else 0.01, lambda _, index: index <= 90)
    assert all(met.values())


def test_a_standstill_that_comes_with_a_policy_is_held_against_it():
    met = _slow_verdicts(calm=lambda policy, index: policy != "raise" or index > 30)
    assert {figure for figure, well in met.items() if not well} == {"more time left out beside raise"}


def test_a_machine_that_hardly_ever_goes_on_measures_nothing():
    with pytest.raises(BenchError, match="stood still too often"):
        _slow_verdicts(calm=lambda policy, index: policy != NOBODY or index < 40, rounds=2)


def test_rounds_beside_other_programs_do_not_count():
    phases = [Phase(number, kind, 0.0, 9.0, 0.5 if number else 0.0) for number in range(2) for kind in KINDS]
    with pytest.raises(BenchError, match="too much else to do"):
        compared(phases, np.arange(9.0), np.ones(9), np.ones(9, bool), lambda _: None)


def test_cores_of_the_work_itself_are_not_taken_by_others(monkeypatch):
    lines = iter(["cpu 100 0 0 7 7 0 0 0 0 0", "cpu 200 50 30 9 9 0 0 20 0 0"])
    clock, used = iter([10.0, 20.0]), iter([1.0, 1.5])
    monkeypatch.setattr(standstill, "TICKS_PER_S", 100)
    monkeypatch.setattr(standstill, "_cpu_line", lambda: next(lines))
    monkeypatch.setattr(standstill, "cpu_seconds", lambda _: next(used))
    monkeypatch.setattr(standstill.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(standstill.time, "process_time", lambda: 0.0)
    assert standstill.Others([7]).cores() == pytest.approx((2.0 - 0.5) / 10)


def test_only_when_a_message_was_due_decides_whether_it_counts():
    due = np.array([5 - BEFORE_S - 0.01, 5 - BEFORE_S / 2, 5.5, 6 + AFTER_S / 2, 6 + AFTER_S + 0.01])
    assert undisturbed(due, [(5.0, 6.0), (50.0, 60.0)]).tolist() == [True, False, False, False, True]


def test_a_message_that_did_not_reach_everybody_spoils_the_figures():
    phases = [Phase(0, NOBODY, 1.0, 2.0)]
    check_complete(phases, np.array([0.5, 1.1, 1.1, 1.2, 1.2]), 2)
    with pytest.raises(BenchError, match="2 messages came 3 times to 2"):
        check_complete(phases, np.array([1.1, 1.1, 1.2]), 2)
    with pytest.raises(BenchError, match="0 messages"):
        check_complete(phases, np.array([0.5]), 2)
