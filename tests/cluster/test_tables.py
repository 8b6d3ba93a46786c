"""Tables when heads of their chains die: conditional changes are made once, refused once, and copies go on."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress

import pytest

from stentor.errors import ConditionFailed

pytestmark = pytest.mark.slow

CLIENTS = 4
DEATHS = 2
BETWEEN = 40  # changes before the next head dies


class Counting(threading.Thread):
    """Counts until it is stopped, and now and then tries what must be refused."""

    def __init__(self, table, stop):
        super().__init__()
        self.table, self.stop = table, stop
        self.counted: list[int] = []
        self.mine: list[int] = []
        self.wrong: list[object] = []

    def run(self):
        try:
            while not self.stop.is_set():
                self.counted.append(self.table.add("everyone", timeout=60))
                self.mine.append(self.table.add(f"each/{self.name}", timeout=60))
                self.refused()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is wrong
            self.wrong.append(error)

    def refused(self):
        with suppress(ConditionFailed):
            self.wrong.append(self.table.put("once", self.name, if_absent=True, timeout=60))


def test_additions_of_several_clients_are_exact_whoever_dies(three):
    with ExitStack() as stack:
        first = stack.enter_context(three.client(timeout=30))
        first.create_topic("counters", kind="table")
        three.wait_for_chain("counters", 3)
        clients = [stack.enter_context(three.client(timeout=60)) for _ in range(CLIENTS)]
        tables = [stack.enter_context(client.table("counters")) for client in clients]
        tables[0].put("once", "first", if_absent=True)
        watch = stack.enter_context(tables[-1].watch("each/"))
        stop = threading.Event()
        counting = [Counting(table, stop) for table in tables]
        for thread in counting:
            thread.start()
        try:
            for _ in range(DEATHS):
                _wait_for_more(three, counting)
                head = three.head("counters")
                three.kill(head)
                _wait_for_more(three, counting)
                three.restart(head)
                three.wait_for_chain("counters", 3, timeout=60)
        finally:
            stop.set()
            for thread in counting:
                thread.join(90)
        assert [thread.wrong for thread in counting] == [[]] * CLIENTS
        total = sum(len(thread.counted) for thread in counting)
        assert sorted(number for thread in counting for number in thread.counted) == list(range(1, total + 1))
        for thread in counting:
            assert thread.mine == list(range(1, len(thread.mine) + 1))
        for table in tables:
            table.sync(timeout=30)
            assert int(table["everyone"]) == total
            assert table["once"] == b"first"
        assert len({tuple(table.entries()) for table in tables}) == 1
        seen = [watch.get(timeout=10) for thread in counting for _ in thread.mine]
        for thread in counting:
            mine = [int(change.new.value) for change in seen if change.key == f"each/{thread.name}"]
            assert mine == thread.mine, "every change once, in order"
        with three.client(timeout=30) as last, last.table("counters") as fresh:
            assert {entry.key: entry for entry in fresh.entries()} == {e.key: e for e in tables[0].entries()}


def _wait_for_more(cluster, counting):
    before = sum(len(thread.counted) for thread in counting)
    cluster.wait_for(
        lambda: (
            sum(len(thread.counted) for thread in counting) >= before + BETWEEN
            or any(thread.wrong for thread in counting)
        ),
        timeout=60,
        what="more additions",
    )


@pytest.mark.long
def test_a_copy_of_a_subtree_goes_on_at_another_member(three):
    """No change of the subtree is missed or told twice, whoever fed the copy, and changes elsewhere are no gap."""
    with three.client(timeout=60) as client, three.client(timeout=60) as reader:
        client.create_topic("parts", kind="table")
        three.wait_for_chain("parts", 3)
        with client.table("parts") as table, reader.table("parts", subtree="app/") as part, part.watch() as watch:
            made = []
            for number in range(3):
                for step in range(20):
                    table.put(f"other/{step}", str(number), timeout=60)
                    made.append(table.put("app/n", f"{number}-{step}", timeout=60))
                part.wait(table.sequence, timeout=60)
                (fed_by,) = {each.link.broker.id for each in part._copy._subscription.readers_now()}
                three.kill(fed_by)
                made.append(table.put("app/n", f"{number}-after", timeout=60))
                part.wait(table.sequence, timeout=60)
                three.restart(fed_by)
                three.wait_for_chain("parts", 3, timeout=60)
            assert part.entries() == table.entries("app/") == [made[-1]]
            assert [watch.get(timeout=10).new for _ in made] == made
