"""Who may lead a chain of which no member goes on: every one of them was restarted, or is gone (C12, C13).

What counts is which copies still hold everything that is committed. Each member of the newest record does, and so does
each eligible one, unless its disk lost what it had synced.

    whole        its log ends where it ended, or behind it: any such copy may lead
    cut          a write at its end was torn and cut off: what it lost was not synced, if the disk kept its word
    otherwise    failed, halted or too short: it may not lead

A copy that was cut leads only when all copies are there and none of them is whole: as after a loss of power everywhere,
in the middle of writing. Then the longest leads. It lacks something that is committed only if every single disk lost
what it had synced; a whole copy, which leads alone, is trusted with less. One copy alone waits for an operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.core.chain_messages import ReplicaReport
    from stentor.core.records import ChainRecord, Key, Member
    from stentor.core.reports import ReportBook

_replace = msgspec.structs.replace
_CUT_COPIES_MIN: Final = 2  # a copy that was cut must be compared with another


def renewed(record: ChainRecord, member: Member, report: ReplicaReport) -> Member | None:
    """C3, C13: a restarted member keeps its place if it still holds everything committed."""
    whole = report.member.same_log(member) and not report.damaged and not report.failed
    return report.member if whole and report.end >= record.committed else None


def revived(key: Key, record: ChainRecord, reports: ReportBook, alive: Mapping[str, int]) -> ChainRecord | None:
    """Nobody of the chain goes on. Only an eligible one may lead, or all that were cut together; all others wait."""
    for member in record.eligible:
        report = _present(key, member, reports, alive)
        found = None if report is None else renewed(record, member, report)
        if found is not None:
            return _led_by(record, found)
    return _led_by_the_longest(key, record, reports, alive)


def _led_by_the_longest(
    key: Key, record: ChainRecord, reports: ReportBook, alive: Mapping[str, int]
) -> ChainRecord | None:
    members = (*record.chain, *record.eligible)
    found = [report for member in members if (report := _present(key, member, reports, alive)) is not None]
    sound = [report for report in found if not report.failed and not report.halted]
    if len(members) < _CUT_COPIES_MIN or len(sound) < len(members):
        return None
    longest = max(sound, key=lambda report: report.end)
    return _led_by(record, longest.member) if longest.end >= record.committed else None


def _present(key: Key, member: Member, reports: ReportBook, alive: Mapping[str, int]) -> ReplicaReport | None:
    """What a member holds, in the life that its broker has now."""
    report = reports.of(key, member.broker)
    if report is None or alive.get(member.broker) != report.member.incarnation:
        return None
    return report if report.member.same_log(member) else None


def _led_by(record: ChainRecord, leader: Member) -> ChainRecord:
    """It begins alone: nothing is committed before others have joined (C8), and they may still lead until then.

    Where one copy is enough to commit, nobody else may lead any more: what it commits from now on it has alone.
    """
    copies = (*record.chain, *record.eligible) if record.min_replicas > 1 else ()
    others = tuple(member for member in copies if not member.same_log(leader))
    return _replace(record, epoch=record.epoch + 1, chain=(leader,), joining=None, eligible=others)
