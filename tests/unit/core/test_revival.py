"""Who may lead when nobody of a chain goes on, and who may still lead after that."""

from stentor.core.chain_messages import ReplicaReport
from stentor.core.records import ChainRecord, Member
from stentor.core.reports import ReportBook
from stentor.core.revival import revived

KEY = (1, 0)
ALIVE = {"a": 2, "b": 2}


def all_cut(min_replicas):
    """Both copies of a partition were cut at their ends by a loss of power, and are there again."""
    chain = tuple(Member(broker, 1, 1) for broker in ALIVE)
    record = ChainRecord(4, chain, committed=10, factor=2, min_replicas=min_replicas)
    book = ReportBook()
    for broker, end in (("a", 30), ("b", 20)):
        report = ReplicaReport(Member(broker, 1, 2), 4, end, 10, damaged=True)
        book.everything(broker, 2, {KEY: report}, 1)
    return revived(KEY, record, book, ALIVE)


def test_the_longest_leads_and_the_others_may_still_lead_while_nothing_is_committed_without_them():
    led = all_cut(min_replicas=2)
    assert [member.broker for member in led.chain] == ["a"]
    assert [member.broker for member in led.eligible] == ["b"]


def test_nobody_else_may_lead_once_the_leader_commits_alone():
    led = all_cut(min_replicas=1)
    assert [member.broker for member in led.chain] == ["a"]
    assert led.eligible == ()
