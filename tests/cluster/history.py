"""What producers did and what consumers saw, and the checker that compares the two.

Every value is published once in the whole history, so a value names its write. The outcome of a write is one of

    sent           no answer yet; counts as unknown
    acknowledged   with partition and offset
    failed         definitely: the client said that it is not in the log, and never will be
    unknown        a timeout, a lost link, a deposed head: it may be there or not

Polls are what a consumer was handed, in order. Final consumers are fresh ones that read everything at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from stentor.errors import Closed, ConnectionFailed, StentorError, UnknownOutcome

SENT, ACKNOWLEDGED, FAILED, UNKNOWN = "sent", "acknowledged", "failed", "unknown"
_DOUBTFUL = (UnknownOutcome, ConnectionFailed, Closed)
_SHOWN = 5


@dataclass(slots=True)
class Write:
    producer: str
    number: int
    outcome: str = SENT
    partition: int = -1
    offset: int = -1
    why: str = ""


@dataclass(slots=True, frozen=True)
class Poll:
    partition: int
    offset: int
    value: bytes


@dataclass(slots=True, frozen=True)
class Anomaly:
    kind: str
    partition: int
    offset: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.partition}/{self.offset}: {self.text}"


@dataclass(slots=True)
class History:
    """Filled by many threads: each producer writes its own entries, each consumer its own list."""

    writes: dict[bytes, Write] = field(default_factory=dict)
    consumers: dict[str, list[Poll]] = field(default_factory=dict)
    finals: dict[str, list[Poll]] = field(default_factory=dict)

    # --- producers ------------------------------------------------------------------------------

    def sent(self, producer: str, number: int, value: bytes) -> None:
        assert value not in self.writes, "every value is published once"
        self.writes[value] = Write(producer, number)

    def acknowledged(self, value: bytes, partition: int, offset: int) -> None:
        write = self.writes[value]
        write.outcome, write.partition, write.offset = ACKNOWLEDGED, partition, offset

    def refused(self, value: bytes, error: StentorError) -> None:
        """What the client's error says about the fate of the write."""
        write = self.writes[value]
        write.outcome = UNKNOWN if isinstance(error, _DOUBTFUL) else FAILED
        write.why = f"{type(error).__name__}: {error.message}"

    # --- consumers ------------------------------------------------------------------------------

    def consumer(self, name: str, *, final: bool = False) -> list[Poll]:
        """The list that one consumer extends; all begin at the earliest message."""
        polls: list[Poll] = []
        (self.finals if final else self.consumers)[name] = polls
        return polls

    # --- what is known --------------------------------------------------------------------------

    def outcomes(self) -> Counter[str]:
        return Counter(write.outcome for write in self.writes.values())

    def check(self) -> list[Anomaly]:
        """Every anomaly, the worst first."""
        return [
            *_lost_and_unseen(self),
            *_inconsistent(self),
            *_duplicates(self),
            *_aborted(self),
            *_disordered(self),
            *_polls(self),
        ]

    def report(self) -> str:
        """One line of figures, and the anomalies by kind with a few examples each."""
        lines = [f"{len(self.writes)} writes {dict(self.outcomes())}"]
        for kind, found in groupby(sorted(self.check(), key=lambda one: one.kind), key=lambda one: one.kind):
            several = list(found)
            lines.append(f"{kind} × {len(several)}")
            lines.extend(f"  {one}" for one in several[:_SHOWN])
        return "\n".join(lines)


def _everyone(history: History) -> dict[str, list[Poll]]:
    return {**history.consumers, **history.finals}


def _acknowledged(history: History) -> dict[int, list[tuple[int, bytes]]]:
    """By partition: (offset, value) of acknowledged writes in the order of the log."""
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for value, write in history.writes.items():
        if write.outcome == ACKNOWLEDGED:
            found[write.partition].append((write.offset, value))
    return {partition: sorted(pairs) for partition, pairs in found.items()}


def _lost_and_unseen(history: History) -> list[Anomaly]:
    """Lost: never read by anyone, although something at or above it was. Unseen: not by a fresh consumer at the end."""
    read = {poll.value for polls in _everyone(history).values() for poll in polls}
    highest: dict[int, int] = defaultdict(lambda: -1)
    for polls in _everyone(history).values():
        for poll in polls:
            highest[poll.partition] = max(highest[poll.partition], poll.offset)
    seen_at_the_end = [{poll.value for poll in polls} for polls in history.finals.values()]
    anomalies = []
    for partition, pairs in _acknowledged(history).items():
        lost = {value for offset, value in pairs if value not in read and offset <= highest[partition]}
        unseen = {value for _, value in pairs if any(value not in seen for seen in seen_at_the_end)} - lost
        for kind, values in (("lost write", lost), ("unseen", unseen)):
            anomalies.extend(_runs(history, kind, partition, pairs, values))
    return anomalies


def _runs(
    history: History, kind: str, partition: int, pairs: list[tuple[int, bytes]], missing: set[bytes]
) -> list[Anomaly]:
    """Each run of missing writes is one anomaly: at the beginning, in the middle or at the end of the partition."""
    anomalies = []
    place = 0
    for is_missing, group in groupby(pairs, key=lambda pair: pair[1] in missing):
        run = list(group)
        first, last = place == 0, place + len(run) == len(pairs)
        place += len(run)
        if is_missing:
            where = "everything" if first and last else "prefix" if first else "suffix" if last else "middle"
            producers = sorted({history.writes[value].producer for _, value in run})
            text = f"{where}, {len(run)} acknowledged writes up to {run[-1][0]} by {', '.join(producers)}"
            anomalies.append(Anomaly(kind, partition, run[0][0], text))
    return anomalies


def _claims(history: History) -> dict[tuple[int, int], dict[bytes, str]]:
    """What is said to be at each offset, and by whom: acknowledgements and polls alike."""
    claims: dict[tuple[int, int], dict[bytes, str]] = defaultdict(dict)
    for value, write in history.writes.items():
        if write.outcome == ACKNOWLEDGED:
            claims[write.partition, write.offset].setdefault(value, f"acknowledged to {write.producer}")
    for name, polls in _everyone(history).items():
        for poll in polls:
            claims[poll.partition, poll.offset].setdefault(poll.value, f"read by {name}")
    return claims


def _inconsistent(history: History) -> list[Anomaly]:
    return [
        Anomaly("inconsistent offset", *place, "; ".join(f"{value!r} {who}" for value, who in said.items()))
        for place, said in _claims(history).items()
        if len(said) > 1
    ]


def _duplicates(history: History) -> list[Anomaly]:
    places: dict[bytes, set[tuple[int, int]]] = defaultdict(set)
    for place, said in _claims(history).items():
        for value in said:
            places[value].add(place)
    return [
        Anomaly("duplicate", *min(found), f"{value!r} is at {sorted(found)}")
        for value, found in places.items()
        if len(found) > 1
    ]


def _aborted(history: History) -> list[Anomaly]:
    """Read, although it definitely failed; or although nobody ever published it."""
    anomalies = []
    told = set()
    for name, polls in _everyone(history).items():
        for poll in polls:
            write = history.writes.get(poll.value)
            if poll.value in told or (write is not None and write.outcome != FAILED):
                continue
            told.add(poll.value)
            kind = "phantom" if write is None else "aborted read"
            why = "nobody published it" if write is None else f"its publish failed: {write.why}"
            anomalies.append(Anomaly(kind, poll.partition, poll.offset, f"{poll.value!r} read by {name}; {why}"))
    return anomalies


def _disordered(history: History) -> list[Anomaly]:
    """Writes of one producer stand in the log in the order in which they were sent."""
    anomalies = []
    log = {(place, value) for place, said in _claims(history).items() for value in said}
    latest: dict[tuple[str, int], int] = {}
    for (partition, offset), value in sorted(log):
        write = history.writes.get(value)
        if write is None:
            continue
        before = latest.get((write.producer, partition), -1)
        latest[write.producer, partition] = max(before, write.number)
        if write.number < before:
            text = f"{value!r} stands after number {before} of {write.producer}"
            anomalies.append(Anomaly("disordered writes", partition, offset, text))
    return anomalies


def _polls(history: History) -> list[Anomaly]:
    """Inside one consumer: offsets only grow, and none is passed over that is known to hold something."""
    anomalies = []
    known = sorted(_claims(history))
    by_partition = {partition: [o for _, o in group] for partition, group in groupby(known, key=lambda at: at[0])}
    for name, polls in _everyone(history).items():
        offsets: dict[int, list[int]] = defaultdict(list)
        for poll in polls:
            offsets[poll.partition].append(poll.offset)
        for partition, seen in offsets.items():
            for before, after in pairwise(seen):
                if after <= before:
                    text = f"{name} was handed {after} after {before}"
                    anomalies.append(Anomaly("reordered poll", partition, after, text))
            anomalies.extend(_skipped(name, partition, seen, by_partition[partition]))
    return anomalies


def _skipped(name: str, partition: int, seen: list[int], known: list[int]) -> list[Anomaly]:
    anomalies = []
    had, top = set(seen), max(seen)
    for missing, group in groupby((o for o in known if o < top), key=lambda offset: offset not in had):
        run = list(group)
        if missing:
            text = f"{name} was handed later messages but not {run[0]} to {run[-1]}"
            anomalies.append(Anomaly("skipped poll", partition, run[0], text))
    return anomalies
