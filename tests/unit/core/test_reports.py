"""What brokers report, in full and as changes; what was missed is noticed."""

import pytest

from stentor.core import cluster_events as e
from stentor.core.chain_messages import ReplicaReport
from stentor.core.cluster import ClusterMember
from stentor.core.cluster_events import AskReports
from stentor.core.controller import Controller
from stentor.core.membership import ControllerKey
from stentor.core.records import Member
from stentor.core.reports import ReportBook

A, B = (1, 0), (1, 1)


def report(end, broker="b1"):
    return ReplicaReport(Member(broker, 7, 3), 5, end, 0)


@pytest.fixture
def book():
    book = ReportBook()
    assert book.everything("b1", 3, {A: report(1), B: report(1)}, 1) == [A, B]
    return book


def test_changes_that_follow_what_was_heard_are_taken(book):
    assert book.changes("b1", 3, {A: report(2)}, [B], 2) == [A]
    assert (book.of(A, "b1"), book.of(B, "b1")) == (report(2), None)
    assert book.changes("b1", 3, {}, [], 3) == []


@pytest.mark.parametrize(("sender", "incarnation", "number"), [("b1", 3, 3), ("b1", 3, 1), ("b1", 4, 2), ("b2", 3, 2)])
def test_changes_after_a_report_that_was_missed_say_too_little(book, sender, incarnation, number):
    assert book.changes(sender, incarnation, {A: report(2)}, [], number) is None
    assert book.of(A, "b1") == report(1)


def test_everything_replaces_what_was_known_unless_newer_ones_were_faster(book):
    assert book.changes("b1", 3, {A: report(9)}, [], 2) == [A]
    assert book.everything("b1", 3, {A: report(1)}, 2) is None
    assert book.of(A, "b1") == report(9)
    assert book.everything("b1", 3, {B: report(4)}, 7) == [B]
    assert book.of(A, "b1") is None


def test_a_broker_that_does_not_count_its_reports_is_always_heard(book):
    for end in (5, 4):
        assert book.everything("b1", 3, {A: report(end)}, 0) == [A]
        assert book.of(A, "b1") == report(end)


def test_another_life_of_a_broker_counts_anew(book):
    assert book.everything("b1", 4, {A: report(1)}, 1) == []
    assert book.lives == {"b1": 4}


def test_a_controller_asks_for_everything_when_it_missed_a_report():
    member = ClusterMember("b0", 1, 0, lambda: 1)
    assert member.step(e.ReportedChanges("b1", 3, {A: report(1)}, [], 5), 0) == [], "who is no controller asks nobody"
    member.step(e.TookOver(ControllerKey("b0", 1), 9), 0)
    assert isinstance(member.controller, Controller)
    assert member.step(e.ReportedChanges("b1", 3, {A: report(1)}, [], 5), 0) == [AskReports("b1")]
    member.step(e.Reported("b1", 3, {A: report(1)}, 6), 0)
    assert AskReports("b1") not in member.step(e.ReportedChanges("b1", 3, {A: report(2)}, [], 7), 0)
